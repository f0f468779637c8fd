"""A page in the browser on which a model is tried (`roformer-lite app`), made with Gradio.

Gradio reports its use to its makers unless it is told not to. It is told here, before any module imports it.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
