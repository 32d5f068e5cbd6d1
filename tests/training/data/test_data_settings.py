import pytest

from swarm_diloco.training.data.settings import DataSettings, TokenizerSettings, held_out_path, shard_path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"source": "disk"}, "data.source"),
        ({"source": "url", "dataset": "http://host/a", "format": "csv"}, "data.format"),
        ({"format": "parquet"}, "data.format"),
        ({"shards": 0}, "data.shards"),
        ({"shards": 2**20 + 1}, "data.shards"),
        ({"text_field": ""}, "data.text_field"),
        ({"split": ""}, "data.split"),
        ({"source": "hub", "revision": COMMIT}, "data.dataset"),
        ({"source": "hub", "dataset": "owner/name", "revision": "main"}, "data.revision"),
        ({"source": "url", "dataset": "/local/file"}, "data.dataset"),
    ],
)
def test_a_wrong_data_setting_is_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        DataSettings(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "words"}, "tokenizer.kind"),
        ({"vocabulary_size": 256}, "tokenizer.vocabulary_size"),
        ({"kind": "byte", "vocabulary_size": 512}, "tokenizer.vocabulary_size"),
        ({"eos_token": ""}, "tokenizer.eos_token"),
    ],
)
def test_a_wrong_tokenizer_setting_is_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        TokenizerSettings(**fields)


def test_good_settings_are_taken():
    DataSettings(source="hub", dataset="owner/name", revision=COMMIT, shards=8)
    DataSettings(source="url", dataset="https://host/{00..07}.parquet", format="parquet", shards=8)
    TokenizerSettings(kind="byte", vocabulary_size=257)


def test_the_names_of_a_runs_files_do_not_change():
    assert shard_path(3) == "data/train-00003.jsonl"
    assert held_out_path() == "data/held-out.jsonl"
