"""Tokenizers from the metadata of GGUF files.

Byte-level vocabularies ("gpt2") are built here, because how text is split before merging follows
from `tokenizer.ggml.pre` and decides the ids; SentencePiece vocabularies are left to transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepo_jax.names import unknown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Token types of the GGUF specification.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
_SENTENCEPIECE = ("llama", "gemma4")
# Splitting rules by the names that the metadata gives them.
_RULES = {
    "gpt2": ("gpt2", "gpt-2"),
    "digits": ("smollm",),
    "llama3": ("llama-bpe", "llama3", "llama-v3", "smaug-bpe"),
    "qwen2": ("qwen2", "deepseek-r1-qwen"),
    "qwen35": ("qwen35",),
}
PRE_TOKENIZERS = {name: rule for rule, names in _RULES.items() for name in names}


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> "PreTrainedTokenizerBase":
    """The tokenizer that a GGUF file carries, with special tokens and chat template.

    Args:
      path: the file; errors name it.
      metadata: its metadata.

    Raises:
      ValueError: no tokenizer in the metadata, or one of an unknown kind.
      ModuleNotFoundError: transformers reads this kind with a package that is not installed.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise ValueError(f"{path} carries no tokenizer: pass one as tokenizer=")
    if kind in _SENTENCEPIECE:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{path} has a SentencePiece vocabulary, which transformers reads with torch "
                f"({error}): pip install torch, or pass a tokenizer as tokenizer="
            ) from error
    if kind != "gpt2":
        error = unknown("tokenizer.ggml.model", kind, ["gpt2", *_SENTENCEPIECE])
        raise ValueError(f"{path}: {error} Pass a tokenizer as tokenizer=.")
    absent = [
        key
        for key in ("tokens", "token_type", "merges", "pre")
        if f"tokenizer.ggml.{key}" not in metadata
    ]
    if absent:
        raise ValueError(
            f"{path} lacks {', '.join(f'tokenizer.ggml.{key}' for key in absent)}, so that its "
            "tokenizer cannot be built: pass one as tokenizer="
        )
    return _byte_level_tokenizer(path, metadata)


def _byte_level_tokenizer(path: Path, metadata: Mapping[str, Any]) -> "PreTrainedTokenizerBase":
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    name = metadata["tokenizer.ggml.pre"]
    if name not in PRE_TOKENIZERS:
        error = unknown("tokenizer.ggml.pre", name, PRE_TOKENIZERS)
        raise ValueError(f"{path}: {error} Pass a tokenizer as tokenizer=.")
    rule = PRE_TOKENIZERS[name]
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = list(metadata["tokenizer.ggml.token_type"])
    while types and types[-1] == UNUSED:  # rows that pad the embedding to a round size
        tokens.pop(), types.pop()
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]],
            ignore_merges=rule == "llama3",
        )
    )
    if rule.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    # In order of their ids, so that none moves: both kinds stay whole wherever they occur in text.
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            added = AddedToken(token, special=kind == CONTROL, normalized=False)
            (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)([added])
    special = {}
    for own, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None and token < len(tokens):
            special[f"{own}_token"] = tokens[token]
    adds_start = metadata.get("tokenizer.ggml.add_bos_token", rule == "llama3")
    if adds_start and "bos_token" in special:
        start = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A",
            pair=f"{start} $A {start} $B",
            special_tokens=[(start, tokenizer.token_to_id(start))],
        )
    context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    limit = {} if context is None else {"model_max_length": context}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special, **limit
    )
    wrapped.chat_template = metadata.get("tokenizer.chat_template")
    return wrapped


def _pre_tokenizer(rule: str):
    """How text is cut into pieces that no merge crosses.

    "gpt2": words, numbers and signs with one space before them. "digits": every digit alone, then
    as "gpt2". The others: a word with one sign or space before it, numbers of up to three digits
    ("llama3") or one ("qwen2", "qwen35"), signs with the line ends after them, line ends, spaces;
    "qwen35" counts combining marks as letters.
    """
    from tokenizers import Regex, pre_tokenizers

    if rule in ("gpt2", "digits"):
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        if rule == "gpt2":
            return whole
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, whole])
    letter = r"\p{L}\p{M}" if rule == "qwen35" else r"\p{L}"
    pattern = "|".join(
        [
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            rf"[^\r\n\p{{L}}\p{{N}}]?[{letter}]+",
            r"\p{N}{1,3}" if rule == "llama3" else r"\p{N}",
            rf" ?[^\s{letter}\p{{N}}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
