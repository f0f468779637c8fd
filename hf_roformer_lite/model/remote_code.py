"""Code beside the weights: a *bundle* opens where this package is not installed, with `trust_remote_code=True`.

transformers writes a bundle when a config or a tokenizer has an `_auto_class`: the file of its class and all files
that this one imports relatively, inside functions too, which is why every config imports its models and why the
folder is flat. This module adds what transformers lacks: a switch, the Auto classes of all heads, and an error message
where transformers is too old. It is imported before anything that an older transformers may not have.
"""

from typing import Any

import transformers

MINIMUM_TRANSFORMERS = (5, 21)

_installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
if _installed < MINIMUM_TRANSFORMERS:
    raise ImportError(
        f"RoFormer-Lite needs transformers {'.'.join(map(str, MINIMUM_TRANSFORMERS))} or newer, but "
        f'{transformers.__version__} is installed: pip install --upgrade "transformers>='
        f'{".".join(map(str, MINIMUM_TRANSFORMERS))}"'
    )


class RemoteCodeMixin:
    """Gives `save_pretrained` and `push_to_hub` the argument `remote_code` (`bool`, *optional*).

    `True` makes a bundle, `False` makes none; left out, everything stays what it was: what came out of a bundle is
    saved as one, by the `Trainer` too. The property `remote_code` reads and sets the same.

    Raises:
        ValueError: for `False` where the code itself came out of a bundle: nothing there could open the result.
    """

    remote_code: bool

    def save_pretrained(self, *args: Any, remote_code: bool | None = None, **kwargs: Any) -> Any:
        self._decide(remote_code)
        return super().save_pretrained(*args, **kwargs)

    def push_to_hub(self, *args: Any, remote_code: bool | None = None, **kwargs: Any) -> Any:
        self._decide(remote_code)
        return super().push_to_hub(*args, **kwargs)

    def _decide(self, remote_code: bool | None) -> None:
        if remote_code is None:
            if not self.remote_code:
                return
            remote_code = True  # write the code again: that of the bundle it came from may be older
        if not remote_code and type(self).__module__.startswith("transformers_modules."):
            raise ValueError(
                f"remote_code=False: {type(self).__name__} itself was loaded as remote code, and nothing here could "
                "open a directory without it; install hf_roformer_lite, load with it, and save again."
            )
        self.remote_code = remote_code


class RemoteCodeConfig(RemoteCodeMixin):
    """For configs; their `auto_map` in config.json names the class behind each Auto class."""

    @staticmethod
    def auto_classes() -> dict[str, type]:
        """The model behind each Auto class, by the name of the Auto class."""
        raise NotImplementedError

    @property
    def remote_code(self) -> bool:
        return getattr(self, "auto_map", None) is not None

    @remote_code.setter
    def remote_code(self, value: bool) -> None:
        if value:
            classes = {"AutoConfig": type(self), **self.auto_classes()}
            ours = {cls.__name__ for cls in classes.values()}
            given = self.auto_map if self.remote_code else {}
            others = {auto: name for auto, name in given.items() if name.rpartition(".")[2] not in ours}
            self.auto_map = {auto: _reference(cls) for auto, cls in classes.items()} | others
        else:
            self.__dict__.pop("auto_map", None)
        self._auto_class = "AutoConfig" if value else None


class RemoteCodeModel(RemoteCodeMixin):
    """For models; the config decides and writes."""

    @property
    def remote_code(self) -> bool:
        return self.config.remote_code

    @remote_code.setter
    def remote_code(self, value: bool) -> None:
        self.config.remote_code = value


class RemoteCodeTokenizer(RemoteCodeMixin):
    """For tokenizers; their `auto_map` is in tokenizer_config.json."""

    @property
    def remote_code(self) -> bool:
        return "auto_map" in self.init_kwargs

    @remote_code.setter
    def remote_code(self, value: bool) -> None:
        if value:  # two places, for a slow and a fast tokenizer; transformers looks for this one in the first
            self.init_kwargs["auto_map"] = {"AutoTokenizer": [_reference(type(self)), None]}
        else:
            self.init_kwargs.pop("auto_map", None)
        self._auto_class = "AutoTokenizer" if value else None


def _reference(cls: type) -> str:
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
