"""A page in the browser on which a model is tried (`roformer-lite app`), made with Gradio.

Gradio reports its use to its makers unless this variable forbids it before any module imports Gradio.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
