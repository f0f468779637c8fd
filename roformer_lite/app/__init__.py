"""A page in the browser on which a model is tried (`roformer-lite app`), made with Gradio."""
