"""Byte-level BPE tokenizers trained on a domain's own text, wrapped for transformers.

Every byte has an id, so any text encodes and decodes back exactly; the same texts give the same
tokenizer on every machine.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # transformers takes seconds to import: only those who need a tokenizer pay
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD_TOKEN = "<|pad|>"
END_TOKEN = "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (PAD_TOKEN, END_TOKEN, *(f"<|{role}|>" for role in ROLES))

# One role token, the content, one end token: the shortest template a small model can read.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 512,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    chat_template: str = CHAT_TEMPLATE,
    *,
    end_token: str = END_TOKEN,
    pad_token: str = PAD_TOKEN,
    individual_digits: bool = False,
) -> "PreTrainedTokenizerFast":
    """A byte-level BPE tokenizer of at most `vocab_size` ids.

    Special tokens take the first ids in the order given, the 256 bytes follow, then merges by
    frequency in `texts` until the size is reached or no pair repeats. With `individual_digits` no
    digit is merged with anything, so that all numbers are spelled alike.

    Raises:
      ValueError: when `vocab_size` has no room for bytes and special tokens, when the end or pad
        token is not among the special tokens, or when there is no text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special_tokens = list(dict.fromkeys(special_tokens))
    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise ValueError(
            f"vocab_size={vocab_size} is below {least}: 256 bytes and {len(special_tokens)} "
            "special tokens need an id each"
        )
    for kind, token in (("end", end_token), ("pad", pad_token)):
        if token not in special_tokens:
            raise ValueError(f"the {kind} token {token!r} is not among {special_tokens}")
    texts = list(texts)
    if not any(texts):
        raise ValueError("no text to train a tokenizer on")
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if individual_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        split = pre_tokenizers.Sequence([digits, split])
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end_token,
        pad_token=pad_token,
        additional_special_tokens=[
            token for token in special_tokens if token not in (end_token, pad_token)
        ],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = chat_template
    return wrapped


def load_tokenizer(directory: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a Hugging Face directory; nothing is fetched.

    Raises:
      FileNotFoundError: when the directory or its tokenizer files do not exist.
      ValueError: files that hold no tokenizer, or one that needs Python code of the directory.
    """
    from transformers import AutoTokenizer

    directory = Path(directory)
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise FileNotFoundError(
            f"{directory} holds no tokenizer.json or tokenizer.model: save one with "
            "tokenizer.save_pretrained, or pass a tokenizer"
        )
    try:  # code that a checkpoint brings is not run, and nobody is asked whether to
        return AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the tokenizers library raises plain Exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{directory} holds no tokenizer that can be read ({reason}): fetch or write "
            "tokenizer.json and tokenizer_config.json again, or pass a tokenizer"
        ) from error


def end_token_ids(tokenizer, generation_config=None) -> tuple[int, ...]:
    """All ids that end a reply, ascending: of the generation config and of the tokenizer.

    Args:
      tokenizer: its `eos_token_id` is taken along.
      generation_config: a mapping or object whose `eos_token_id` is an id, a list of ids, or None.

    Raises:
      ValueError: when there is none, since no reply would end.
    """
    if isinstance(generation_config, dict):
        configured = generation_config.get("eos_token_id")
    else:
        configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = []
    ids = set(configured if isinstance(configured, list | tuple) else [configured])
    if getattr(tokenizer, "eos_token_id", None) is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ValueError(
            "neither the tokenizer nor the generation config names an end token: set "
            "tokenizer.eos_token or eos_token_id in generation_config.json"
        )
    return tuple(sorted(int(token) for token in ids))
