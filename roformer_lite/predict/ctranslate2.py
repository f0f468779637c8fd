"""CTranslate2 in the place of a model that generates: encoder–decoders and causal language models.

It searches and samples itself, so arguments of `generate` become its own options, or are refused by
their names. Greedy tokens are those of `generate`. Beams may differ, as the two end a search by
different rules, and samples are drawn by other random numbers.
"""

from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError
from ..export.formats import named_vocabulary
from ..saved_model import naming

# Fields of a generation config that change nothing here: where they are not the tokens that the
# exported files hold, they are about the loop of transformers.
_WITHOUT_EFFECT = {
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "use_cache",
        "transformers_version",
    ),
    *(
        "max_length",
        "max_new_tokens",
        "return_dict_in_generate",
        "trust_remote_code",
        "_from_model_config",
    ),
    *("do_sample", "early_stopping"),
}
_NEUTRAL_AT_ONE = (
    "num_return_sequences",
    "num_beam_groups",
    "typical_p",
    "encoder_repetition_penalty",
)
_NEUTRAL_AT_ONE += ("repetition_penalty",)
_NAMES = {"num_beams": "beam_size", "length_penalty": "length_penalty"}
# those of causal models count the prompt in transformers
_OF_PAIRS = ("repetition_penalty", "no_repeat_ngram_size")
# Their names in CTranslate2, and what a field that is not set means.
_SAMPLING = {
    "temperature": ("sampling_temperature", 1.0),
    "top_k": ("sampling_topk", 0),
    "top_p": ("sampling_topp", 1.0),
}


class CTranslate2Generator:
    """A model that `roformer-lite export --format ctranslate2` wrote.

    Args:
        folder: With `model.bin`.
        config: Of the model.
        generation_config: As saved with the model.
        tokenizer: Gives the names of the tokens, which CTranslate2 takes and returns.

    Raises:
        InputError: when the files cannot be loaded, or the saved generation config asks for what
            CTranslate2 lacks.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        folder: Path,
        config: PreTrainedConfig,
        generation_config: GenerationConfig,
        tokenizer: PreTrainedTokenizerBase,
    ):
        import ctranslate2

        self.config, self.generation_config = config, generation_config
        kind = ctranslate2.Translator if config.is_encoder_decoder else ctranslate2.Generator
        with naming(folder):
            self.engine = kind(str(folder), intra_threads=torch.get_num_threads())
        sources = config.encoder if config.is_encoder_decoder else config
        self.names = named_vocabulary(tokenizer, sources.vocab_size)
        targets = named_vocabulary(tokenizer, config.get_text_config(decoder=True).vocab_size)
        self.ids = {name: index for index, name in enumerate(targets)}
        search_options(generation_config, config.is_encoder_decoder)

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """As transformers' `generate`: ids `(B, longest)`, those of a causal model with the prompt
        before them.

        Args:
            input_ids, attention_mask: `(B, L)`; padding may stand anywhere.
            **options: Fields of `GenerationConfig`, which stand before those that were saved with
                the model.

        Raises:
            InputError: for an option that CTranslate2 does not have.
        """
        chosen = GenerationConfig.from_dict({**self.generation_config.to_dict(), **options})
        search = search_options(chosen, self.config.is_encoder_decoder)
        longest = chosen.max_new_tokens
        rows = [
            [self.names[index] for index in ids[mask.bool()].tolist()]
            for ids, mask in zip(input_ids, attention_mask, strict=True)
        ]
        if chosen.do_sample:
            import ctranslate2

            # This way the seed of torch decides.
            ctranslate2.set_random_seed(int(torch.randint(2**31, ())))
        if self.config.is_encoder_decoder:
            # transformers' own default; the start token counts
            longest = longest or (chosen.max_length or 20) - 1
            results = self.engine.translate_batch(
                rows, max_decoding_length=longest, min_decoding_length=0, **search
            )
            found = [[self.ids[name] for name in result.hypotheses[0]] for result in results]
            return self._padded(found, torch.full((len(rows), 1), chosen.decoder_start_token_id))
        if longest is None:
            raise InputError(
                "max_new_tokens: CTranslate2 counts the tokens after the prompt; give their number"
            )
        results = self.engine.generate_batch(
            rows, max_length=longest, min_length=0, include_prompt_in_result=False, **search
        )
        return self._padded([result.sequences_ids[0] for result in results], input_ids)

    def _padded(self, rows: list[list[int]], before: torch.Tensor) -> torch.Tensor:
        padding = self.config.get_text_config(decoder=True).pad_token_id
        found = [torch.tensor(row, dtype=torch.long) for row in rows]
        return torch.cat(
            (before, pad_sequence(found, batch_first=True, padding_value=padding)), dim=1
        )


def search_options(generation_config: GenerationConfig, is_pair: bool) -> dict[str, Any]:
    """The options of CTranslate2's search.

    Args:
        generation_config: What is asked for.
        is_pair: Whether the model is an encoder–decoder.

    Raises:
        InputError: for a field that it has no option for.
    """
    # the others are off
    asked = {name: value for name, value in generation_config.to_diff_dict().items() if value}
    names = {**_NAMES, **(dict.fromkeys(_OF_PAIRS) if is_pair else {})}
    options: dict[str, Any] = {"beam_size": 1}
    for name, value in asked.items():
        if name in names:
            options[names[name] or name] = value
        elif (
            name not in _WITHOUT_EFFECT
            and name not in _SAMPLING
            and not (name in _NEUTRAL_AT_ONE and value == 1)
        ):
            raise InputError(
                f"{name}={value!r}: --engine ctranslate2 has no such option, and --engine onnx all"
            )
    if asked.get("do_sample"):
        if options["beam_size"] > 1:
            raise InputError(
                f"num_beams={options['beam_size']}: CTranslate2 draws tokens without beams; give one beam"
            )
        for name, (theirs, default) in _SAMPLING.items():
            value = getattr(generation_config, name)
            options[theirs] = default if value is None else value
    return options
