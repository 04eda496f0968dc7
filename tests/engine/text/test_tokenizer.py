"""The tokenizer and template of a model, from a GGUF and from a folder, against transformers' own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLTokenizer
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from engine.errors import ModelError
from engine.text.detokenizer import TokenBytes
from engine.text.template import ChatTemplate, TemplateRejected
from engine.text.tokenizer import Tokenizer, load_tokenizer
from engine.text.vocabulary import tokenizer_from_metadata

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Name a color."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?\n\nAnd 42?"}],
    [
        {"role": "user", "content": "Hi 👋"},
        {"role": "assistant", "content": "Hello! "},
        {"role": "user", "content": " <|im_end|> {{ 7 * 7 }} {% raw %}"},
    ],
]

FRAGMENTS = [
    *("word", "Word", "WORD", "don't", "we'll", "naïve", "größer", "ß", "Ωmega", "привет", "世界", "こんにちは"),
    *("مرحبا", "नमस्ते", "สวัสดี", "😀", "👨‍👩‍👧", "🇯🇵", "é", "e\u0301", "½", "²", "٣", "Ⅳ", "_", "-", "--", "...", "!?"),
    *("(x)", "[1]", "{a: b}", "</s>", "http://a.b/c?d=e", "foo_bar", "FooBar", "=>", "\t", "\n", "\n\n", "\r\n"),
    *("\u00a0", "\u3000", "\u200b", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"),
]


def texts(seed: int, count: int, extra: list[str]) -> Iterator[str]:
    generator = random.Random(seed)
    for _ in range(count):
        parts = generator.choices([*FRAGMENTS, *extra], k=generator.randint(1, 20))
        yield "".join(part + generator.choice(["", "", " "]) for part in parts)


@pytest.fixture(scope="module")
def ours(default_model: Path) -> Tokenizer:
    return load_tokenizer(default_model)


@pytest.fixture(scope="module")
def theirs(default_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(default_model.parent), gguf_file=default_model.name)


@pytest.mark.model
def test_gguf_encodes_as_transformers_does(ours: Tokenizer, theirs: Any) -> None:
    # Digits are left out here: see the next test.
    for text in texts(seed=1, count=400, extra=["  ", "   "]):
        plain = text.translate({ord(letter): None for letter in "0123456789½²٣Ⅳ"})
        assert list(ours.encode(plain)) == theirs.encode(plain), plain
        assert list(ours.encode_chat(plain)) == theirs.encode(plain, add_special_tokens=False), plain


@pytest.mark.model
def test_digits_are_split_off_before_words(ours: Tokenizer) -> None:
    # The rule "smollm": every digit stands alone before spaces are grouped. transformers leaves the rule
    # of the file aside and reads "x", " ", " 1" here.
    spelled = [ours.backend.id_to_token(token) for token in ours.encode("x  12\n\n3a4")]
    assert spelled == ["x", "ĠĠ", "1", "2", "ĊĊ", "3", "a", "4"]


@pytest.mark.model
def test_templates_render_as_transformers_does(ours: Tokenizer, theirs: Any) -> None:
    assert ours.template is not None
    for chat in CHATS:
        rendered = ours.template.render(chat, {})
        assert rendered == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        expected = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert list(ours.encode_chat(rendered)) == expected


@pytest.mark.model
def test_a_folder_is_read_as_transformers_reads_it(theirs: Any, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    folder = load_tokenizer(tmp_path)
    for text in texts(seed=2, count=200, extra=["  ", "12", "2026-11-20"]):
        assert list(folder.encode(text)) == theirs.encode(text), text
        assert folder.decode(folder.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    assert folder.template is not None
    for chat in CHATS:
        assert folder.template.render(chat, {}) == theirs.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )


@pytest.mark.model
def test_loading_leaves_torch_and_transformers_out(default_model: Path) -> None:
    code = (
        "import sys, pathlib, engine.__main__, engine.text.tokenizer as t;"
        "t.load_tokenizer(pathlib.Path(sys.argv[1]));"
        "print(sorted({'torch', 'transformers', 'triton', 'gguf'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", code, str(default_model)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


CORPUS = [
    "the cat sat on the mat, and the other cat sat on the other mat",
    "a man, a plan, a canal: panama",
    "der kater und die katze saßen auf der matte",
    "numbers 1 2 3 and 12 and 123",
]


def sentencepiece_like() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A byte-fallback BPE as Llama 2's, trained here, and the metadata a GGUF would hold for it."""
    original = tokenizers.Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    original.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    original.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", "<s>", "</s>"]
    trainer = BpeTrainer(vocab_size=500, special_tokens=[*special, *bytes_], show_progress=False)
    original.train_from_iterator(CORPUS, trainer)
    state = json.loads(original.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    original = tokenizers.Tokenizer.from_str(json.dumps(state))
    size = original.get_vocab_size()
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_token(number) for number in range(size)],
        "tokenizer.ggml.scores": [float(-number) for number in range(size)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (size - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return original, metadata


def test_sentencepiece_merges_are_recovered_from_the_scores() -> None:
    original, metadata = sentencepiece_like()
    rebuilt = tokenizer_from_metadata(metadata)
    for text in [*CORPUS, "the  cat", " mat", "katze 😀 ü", "", "unseen WORDS", *texts(seed=3, count=50, extra=[])]:
        assert rebuilt.encode(text).ids == [1, *original.encode(text).ids]
        assert rebuilt.encode(text, add_special_tokens=False).ids == original.encode(text).ids


def test_the_token_that_begins_a_text_may_be_spelled_in_any_way() -> None:
    _, metadata = sentencepiece_like()
    metadata["tokenizer.ggml.tokens"][1] = "<begin: here>"
    assert tokenizer_from_metadata(metadata).encode("the cat").ids[0] == 1


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({}, [2]),
        ({"add_bos_token": True}, [3, 2]),
        ({"add_eos_token": True, "add_bos_token": False}, [2, 4]),
        ({"add_eos_token": True, "add_bos_token": True}, [3, 2, 4]),
        ({"add_eos_token": True, "pre": "llama-bpe"}, [3, 2, 4]),
        ({"add_eos_token": False, "pre": "llama-bpe"}, [3, 2]),
        ({"pre": "llama-v3"}, [3, 2]),
        ({"pre": "llama3"}, [3, 2]),
        ({"pre": "tekken"}, [3, 2]),
        ({"pre": "tekken", "add_bos_token": False}, [2]),
    ],
)
def test_a_gguf_says_which_tokens_begin_and_end_a_text(flags: dict[str, Any], ids: list[int]) -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "</s>"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 4,
    }
    tokenizer = tokenizer_from_metadata(metadata | {f"tokenizer.ggml.{name}": value for name, value in flags.items()})
    assert tokenizer.encode("ab").ids == ids
    assert tokenizer.encode("ab", add_special_tokens=False).ids == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.tokens": []}, "tokens is missing"),
        ({"tokenizer.ggml.scores": [0.0]}, "the numbers of .* differ"),
        ({"tokenizer.ggml.token_type": [1]}, "the numbers of .* differ"),
        ({"tokenizer.ggml.bos_token_id": 9999}, "BOS token 9999 is outside the vocabulary"),
        ({"tokenizer.ggml.eos_token_id": -1, "tokenizer.ggml.add_eos_token": True}, "EOS token -1 is outside"),
        ({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.pre"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "nobody-knows"}, "nobody-knows"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["a nowhere"]},
            "cannot be used",
        ),
        (
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": ["a", "b"],
                "tokenizer.ggml.token_type": [1, 1],
                "tokenizer.ggml.merges": ["a b"],
            },
            "cannot be used",
        ),
    ],
)
def test_vocabularies_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    _, metadata = sentencepiece_like()
    with pytest.raises(ModelError, match=message):
        tokenizer_from_metadata({**metadata, **change})


def test_folders_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    original, _ = sentencepiece_like()
    original.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize(
    "files",
    [
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "default", "template": "plain"},
                    {"name": "tool_use", "template": "{{ tools }}<tool_call>"},
                ]
            }
        },
        {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "{{ tools }}<tool_call>"},
    ],
)
def test_a_template_of_its_own_for_tools(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    tokenizer = load_tokenizer(folder)
    plain, with_tools = tokenizer.template_for(tools=False), tokenizer.template_for(tools=True)
    assert plain is not None and plain.source == "plain"
    assert with_tools is not None and with_tools.source == "{{ tools }}<tool_call>"
    assert tokenizer.families.tools == "hermes"


NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
ADDED = {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize(
    ("config", "mapped"),
    [
        (NAMED, None),
        ({}, NAMED),
        ({}, {"bos_token": ADDED, "eos_token": "</s>", "additional_special_tokens": ["</s>"]}),
        (NAMED, {"bos_token": "</s>", "eos_token": "<s>"}),
        ({**NAMED, "added_tokens_decoder": {"0": {**ADDED, "special": True}}}, {"bos_token": "</s>"}),
        ({**NAMED, "bos_token": None}, NAMED),
        ({**NAMED, "extra_special_tokens": {"boi_token": "<s>"}}, None),
        (NAMED, {"boi_token": "<s>"}),
    ],
    ids=repr,
)
def test_named_tokens_are_found_where_transformers_finds_them(
    tmp_path: Path, config: dict[str, Any], mapped: dict[str, Any] | None
) -> None:
    from transformers import AutoTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(BPE({letter: i for i, letter in enumerate(letters, 2)} | {"<s>": 0, "</s>": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    template = "{{ bos_token }}{{ boi_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    files = {
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **config},
    }
    if mapped is not None:
        files["special_tokens_map.json"] = mapped
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    chat = [{"role": "user", "content": "hi"}]
    found = load_tokenizer(tmp_path).template
    assert found is not None
    expected = AutoTokenizer.from_pretrained(str(tmp_path)).apply_chat_template(chat, tokenize=False)
    assert found.render(chat, {}, generation=False) == expected


def test_a_base_model_has_no_template(folder: Path) -> None:
    assert load_tokenizer(folder).template is None


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": "one {{ bos_token }}", "bos_token": "<s>"}},
        {"tokenizer_config.json": {"chat_template": "one <s>"}},
        {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "one <s>"}]}},
        {"chat_template.json": {"chat_template": "one <s>"}},
        {"tokenizer_config.json": {"chat_template": None}, "chat_template.json": {"chat_template": "one <s>"}},
        {"chat_template.jinja": "one {{ bos_token }}", "tokenizer_config.json": {"bos_token": {"content": "<s>"}}},
    ],
)
def test_the_places_of_a_template(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    template = load_tokenizer(folder).template
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}], {}) == "one <s>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe{{x}}"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b"[" * 100_000),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name} cannot be read"):
        load_tokenizer(folder)


def test_a_template_whose_name_is_no_text_is_not_used(folder: Path) -> None:
    named = [{"name": ["default"], "template": "one"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_tokenizer(folder).template is None


def rendered(source: str, variables: dict[str, Any] | None = None) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render([{"role": "user", "content": "<&>"}], variables or {})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),  # trim_blocks, lstrip_blocks
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<&>"}]'),  # no HTML escapes
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, indent=1) }}", '{\n "a": "é",\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }} {{ add_generation_prompt }}", "True True"),
        ("{{ thinking | default('unset') }}", "unset"),
    ],
)
def test_what_templates_may_use(source: str, text: str) -> None:
    assert rendered(source) == text


def test_a_templates_own_variables() -> None:
    assert rendered("{{ thinking }}", {"thinking": False}) == "False"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0].nothing.deeper }}", "nothing"),
        ("{{ messages[0]['content'] + 1 }}", "str"),
        ("{{ messages.append(1) }}", "append"),  # values cannot be changed
        ("{{ ''.__class__.__mro__ }}", "__class__"),  # nor left behind
        ("{{ range(10 ** 9) | list }}", "range"),
    ],
)
def test_what_templates_may_not_do(source: str, message: str) -> None:
    with pytest.raises(TemplateRejected, match=message):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ x | unheard_of }}",
        "{{" + "(" * 3000 + ")" * 3000 + "}}",
        "{% for x in y %}" * 99 + "{% endfor %}" * 99,
    ],
)
def test_a_template_with_a_syntax_error_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelError, match="not valid"):
        ChatTemplate(source, {})


def test_a_rejection_without_words_is_called_by_its_kind() -> None:
    with pytest.raises(TemplateRejected, match=r"rejected the messages: MemoryError$"):
        rendered("{{ 'a' * (10 ** 17) }}")


def test_a_mark_in_angle_brackets_is_named_by_its_id_as_llguidance_wants_it() -> None:
    """Qwen's <tool_call> is an added token and no special one; the grammar library takes it for special."""
    backend = tokenizers.Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "[CALLS]"])
    backend.add_tokens(["<tool_call>"])
    marked = Tokenizer(backend, TokenBytes.of(backend), None, None)
    known = {text: marked.special(text) for text in ("<end>", "[CALLS]", "<tool_call>", "<think>", "a")}
    assert known == {"<end>": 1, "[CALLS]": 2, "<tool_call>": 3, "<think>": None, "a": None}
    library = LLTokenizer(backend.to_str(), n_vocab=4, eos_token=[1])
    assert [library.is_special_token(token) for token in range(4)] == [False, True, True, True]
