"""`roformer-lite app`: a page in the browser for trying a model. It shows what `predict` writes."""

from pathlib import Path

import gradio
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..errors import InputError
from ..options.models import SEED, DeviceArguments


def main(options: DeviceArguments, directory: str) -> None:
    """Run `roformer-lite app DIR` until the process is stopped.

    Raises:
        InputError: if the model cannot be loaded, or the page cannot be opened at this address.
    """
    saved = open_model(directory, device=options.device)
    page = page_of(saved, title=Path(directory).resolve().name)
    open_page(page).block_thread()


def page_of(saved: SavedModel, title: str) -> gradio.Interface:
    """A page with a box for a text, or with two boxes for a pair of texts.

    Programs call it at the endpoint `/predict` with the parameter `text`, and with `text_pair` for
    a model that reads pairs. Gradio serves one visitor at a time, because all visitors share the
    model and the random state.
    """
    names = ["text", "text_pair"] if saved.recipe.takes_pairs else ["text"]

    def predict(text: str, text_pair: str = "") -> str:
        """The line that `roformer-lite predict` writes for a text or for a pair of texts."""
        texts = [given.strip() for given in (text, text_pair)[: len(names)]]
        if not all(texts):
            raise InputError("a box is empty; write a text into it")
        set_seed(SEED)
        recipe = saved.recipe
        given = texts if recipe.takes_pairs else recipe.input_of_line(text)
        (answer,) = saved.answers([given], batch_size=1)
        return recipe.show(answer, {}).line

    return gradio.Interface(
        fn=predict,
        inputs=[gradio.Textbox(label=name, lines=3) for name in names],
        outputs=gradio.Textbox(label="answer", buttons=["copy"]),
        title=title,
        api_name="predict",
        flagging_mode="never",  # Flags would write the texts of visitors to a file.
        analytics_enabled=False,
        concurrency_limit=1,
    )


def open_page(page: gradio.Interface) -> gradio.Interface:
    """Open a page at the address that the environment variables GRADIO_SERVER_NAME and
    GRADIO_SERVER_PORT name. It is not shared on the internet, and nothing is reported to Gradio's
    makers.

    Args:
        page: The page.

    Returns:
        The page, which a thread of this process serves.

    Raises:
        InputError: if the page cannot be opened at this address.
    """
    try:
        page.launch(
            show_error=True,  # Visitors read what is wrong with their text.
            max_file_size=1,  # The page needs no files, so it accepts none above one byte.
            theme=gradio.themes.Default(),  # The fonts of this theme come with Gradio.
            share=False,
            ssr_mode=False,  # This would start a second server, which needs Node.
            run_history=False,  # Otherwise the browser would store the texts of visitors.
            quiet=True,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise InputError(f"the page cannot be opened at this address: {error}") from error
    print(f"{page.title}: {page.local_url}", flush=True)
    return page
