import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from swarm_diloco.errors import DataError
from swarm_diloco.training.data.settings import END_OF_DOCUMENT, TokenizerSettings
from swarm_diloco.training.data.tokenizer import (
    Encoder,
    byte_tokenizer,
    copy_from,
    load_tokenizer,
    make_tokenizer,
    save,
    train_bpe,
)

TEXT = [f"The quick brown fox number {n} jumps over the lazy dog of house {n * 7 % 13}." for n in range(60)]
TOKENIZERS = {"byte": byte_tokenizer(), "bpe": train_bpe(TEXT, 340)}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=texts)
def test_any_text_comes_back(kind, text):
    tokenizer = TOKENIZERS[kind]
    (ids,) = Encoder(tokenizer).encode([text])
    assert ids.dtype.name == "int32"
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids[:-1].tolist()) == text


@given(text=texts)
def test_a_byte_token_is_the_byte(text):
    (ids,) = Encoder(TOKENIZERS["byte"]).encode([text])
    assert ids.tolist() == [*text.encode(), 256]


def test_bpe_has_the_vocabulary_asked_for_and_is_the_same_each_time():
    again = train_bpe(iter(TEXT), 340)
    assert len(again) == 340
    assert len(train_bpe(TEXT, 10_000)) < 500, "there are no more words than the text has"
    assert again.backend_tokenizer.to_str() == TOKENIZERS["bpe"].backend_tokenizer.to_str()
    assert len(Encoder(again).encode([TEXT[0]])[0]) < len(TEXT[0]) / 2


def test_no_text_and_too_small_a_vocabulary_are_refused():
    with pytest.raises(DataError, match="no text"):
        train_bpe([], 400)
    with pytest.raises(ValueError, match="257"):
        train_bpe(TEXT, 256)


def with_template(tokenizer):
    """One that adds a token before and after each text, cuts and fills it, as pretrained ones do."""
    eos = tokenizer.eos_token_id
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_DOCUMENT} $A {END_OF_DOCUMENT}", special_tokens=[(END_OF_DOCUMENT, eos)]
    )
    backend.enable_truncation(max_length=5)
    backend.enable_padding(length=8, pad_id=eos, pad_token=END_OF_DOCUMENT)
    return tokenizer


@pytest.mark.parametrize("make", [byte_tokenizer, lambda: train_bpe(TEXT, 300)])
@pytest.mark.parametrize("change", [lambda tokenizer: tokenizer, with_template])
def test_there_is_one_end_a_document_and_no_other(make, change):
    documents = ["one", "", f"a text that says {END_OF_DOCUMENT} twice: {END_OF_DOCUMENT}", "a long text " * 50]
    encoder = Encoder(change(make()))
    encoded = encoder.encode(documents)
    assert [ids.tolist().count(encoder.eos_id) for ids in encoded] == [1, 1, 1, 1]
    assert all(ids[-1] == encoder.eos_id for ids in encoded)
    assert len(encoded[3]) > 100


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_saved_tokenizer_is_the_same_when_loaded(kind, tmp_path):
    tokenizer = TOKENIZERS[kind]
    paths = save(tokenizer, tmp_path)
    assert {path.name for path in paths} == {"tokenizer.json", "tokenizer_config.json"}
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_token_id == tokenizer.eos_token_id
    assert len(loaded) == len(tokenizer)
    assert Encoder(loaded).encode(TEXT)[5].tolist() == Encoder(tokenizer).encode(TEXT)[5].tolist()


def test_a_models_tokenizer_needs_an_end_of_document_token(tmp_path):
    save(TOKENIZERS["bpe"], tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="no end-of-document token"):
        copy_from(tmp_path)
    with pytest.raises(DataError, match="</s>"):
        copy_from(tmp_path, eos_token="</s>")
    assert copy_from(tmp_path, eos_token=END_OF_DOCUMENT).eos_token_id == 0


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    save(TOKENIZERS["bpe"], tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(DataError, match="is damaged"):
        load_tokenizer(tmp_path)


def test_settings_make_the_kind_they_name():
    assert len(make_tokenizer(TokenizerSettings(kind="byte", vocabulary_size=257), [])) == 257
    assert len(make_tokenizer(TokenizerSettings(vocabulary_size=300), TEXT)) == 300
    with pytest.raises(ValueError, match="copied from the model"):
        make_tokenizer(TokenizerSettings(kind="model"), TEXT)
