"""Estimates of memory and disk against counts made by hand, and the refusals that come before work starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crl.cli.needs import Need, needs
from crl.config import EnvironmentConfig, Experiment, LoraConfig, Runtime
from crl.config.load import load_experiment
from crl.errors import BadInput, NotEnoughDisk
from crl.policies import resolve_model
from crl.preflight import check_ready
from crl.preflight.estimate import _bytes_in, check_disk, download_bytes, estimate, gigabytes, still_to_write
from crl.preflight.shapes import SHAPES, ModelShape, shape_of
from crl.run.manifest import MANIFEST, Digested, Manifest
from tests.architectures import parameters, write_small
from tests.recipe_runs import requires
from tests.unit.engine.harness import make_experiment

ROOT = Path(__file__).parents[3]


def tiny_with_head() -> int:
    """Parameters of the tiny model, as its files say, with a vocabulary head of its own."""
    resolve_model("tiny")
    shape = shape_of("tiny")
    assert shape is not None and shape.parameters > SHAPES["tiny"].parameters
    return shape.parameters + shape.vocabulary * shape.hidden


class NowhereConfig(EnvironmentConfig):
    """An environment that cannot be played here."""

    kind: str = "nowhere"

    def make(self) -> object:
        raise BadInput("there is no place Nowhere-v0")


def changed(experiment: Experiment, recipe: str | None = None, **method: object) -> Experiment:
    """`actor` and `extractor` replace a role, `recipe` its kind, `retrieval` is the recipe's, others the method's."""
    data = experiment.model_dump()
    if recipe is not None:
        data["method"]["recipe"]["kind"] = recipe
    for name, value in method.items():
        part = {"actor": "roles", "extractor": "roles", "retrieval": "recipe"}.get(name)
        (data["method"] if part is None else data["method"][part])[name] = value
    return Experiment.model_validate(data)


def test_the_shape_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2, "intermediate_size": 16, "tie_word_embeddings": false}'
    )
    assert shape_of(str(tmp_path)) == ModelShape(10, 8, 2, 4, 16, tied=False)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    assert shape_of(str(tmp_path)) is None


def test_an_unknown_model_has_no_estimate() -> None:
    role = make_experiment().method.role("actor").model_copy(update={"model": "nobody/never-downloaded"})
    needed = estimate(changed(make_experiment(), actor=role.model_dump()))
    assert needed.memory_bytes is None and needed.disk_bytes(3) is None
    assert needed.unknown == ("nobody/never-downloaded",)


def test_an_embedder_that_is_a_model_takes_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}'
    )
    base = make_experiment(recipe={"kind": "complementary"})
    retrieval = base.method.recipe.retrieval.model_dump()
    with_model = estimate(changed(base, retrieval={**retrieval, "embedder": str(tmp_path)}))
    shape = shape_of(str(tmp_path))
    assert shape is not None
    assert (with_model.memory_bytes or 0) - (estimate(base).memory_bytes or 0) == 4 * shape.parameters
    unknown = changed(base, retrieval={**retrieval, "embedder": "nobody/never-downloaded"})
    assert estimate(unknown).unknown == ("nobody/never-downloaded",)
    assert estimate(changed(unknown, recipe="baseline")).unknown == ()


def test_adapters_need_less_than_full_weights() -> None:
    full = make_experiment()
    role = full.method.role("actor").model_copy(update={"lora": LoraConfig(r=2)}).model_dump()
    adapted = changed(full, actor=role, extractor=role)
    assert (estimate(adapted).checkpoint_bytes or 0) < (estimate(full).checkpoint_bytes or 0) / 4
    assert (estimate(adapted).memory_bytes or 0) < (estimate(full).memory_bytes or 0)


def test_roles_that_are_not_trained_keep_no_checkpoints() -> None:
    full = estimate(make_experiment(recipe={"kind": "complementary"})).checkpoint_bytes or 0
    for kind in ("baseline", "static_online", "experience_only", "offline_bank"):
        assert estimate(make_experiment(recipe={"kind": kind})).checkpoint_bytes == full / 2, kind


@pytest.mark.parametrize(
    ("role", "experiment", "key"),
    [
        ("extractor", "conf/tiny.yaml", "method.recipe.distill.batch"),
        pytest.param("reflector", "conf/erl.yaml", "method.recipe.reflect.batch", marks=requires("erl")),
        pytest.param("experience", "conf/dreamgym.yaml", "method.recipe.predict.batch", marks=requires("dreamgym")),
    ],
)
def test_a_role_that_writes_one_turn_samples_what_its_recipe_batches(role: str, experiment: str, key: str) -> None:
    one, many = (estimate(load_experiment(ROOT / experiment, {key: rows})).sampling[role] for rows in (1, 40))
    assert many.cache == 40 * one.cache > 0


def test_top_p_of_one_family_takes_memory() -> None:
    # With a vocabulary of 49,152 the draw is what takes most.
    data = load_experiment(ROOT / "conf/quickstart.yaml", {"method.roles.actor.context": 64}).model_dump()
    whole = estimate(Experiment.model_validate(data)).sampling["actor"]
    data["method"]["families"][-1]["sampling"] = {"top_p": 0.9}
    cut = estimate(Experiment.model_validate(data)).sampling["actor"]
    assert cut.working > whole.working and cut.cache == whole.cache


def test_disk_grows_with_the_sequences_of_an_episode() -> None:
    experiment = load_experiment(ROOT / "conf/tiny.yaml")
    actor = experiment.method.roles["actor"].model_dump()
    found = [
        estimate(changed(experiment, actor={**actor, "history": history})).round_bytes
        for history in ("append", {"window": 2}, "strip_thoughts")
    ]
    assert found == sorted(found) and len(set(found)) == 3
    assert experiment.method.families[0].turn_limit == 6, "a sequence for each turn, of half the turns on the average"
    assert found[2] - found[0] == 18 * 2048 * (7 / 2 - 1) * experiment.method.episodes


def test_disk_grows_with_rounds_and_kept_checkpoints() -> None:
    few, many = (estimate(make_experiment(save_total_limit=keep)) for keep in (1, 5))
    # Beside the newest ones: the best evaluated, and the one that is being written.
    assert 3 * (many.checkpoint_bytes or 0) == 7 * (few.checkpoint_bytes or 0)
    assert (few.disk_bytes(10) or 0) - (few.disk_bytes(4) or 0) == 6 * few.round_bytes > 0


def test_a_run_that_goes_on_has_room_for_the_checkpoint_that_is_written_before_one_goes(tmp_path: Path) -> None:
    with tmp_path.joinpath("old").open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is used
    for every in (0, 2):
        needed = estimate(made := make_experiment(keep_every=every))
        assert needed.written_bytes > needed.kept_every_bytes
        more = needed.written_bytes + 10 * (needed.round_bytes + needed.kept_every_bytes)
        assert still_to_write(made, tmp_path, 10) == more
    assert still_to_write(made, tmp_path, 0) == 0


def test_checkpoints_that_later_rounds_read_are_kept_and_counted() -> None:
    """Where rounds overlap, a trial plays with the actor of the round before while the next one is written."""
    changes = {"runtime.save_total_limit": 1, "method.recipe.trial": {}}
    plain, overlapping = (
        estimate(load_experiment(ROOT / "conf/tiny.yaml", {**changes, "method.overlap": overlap}))
        for overlap in (False, True)
    )
    assert plain.checkpoint_bytes == 3 * plain.written_bytes
    assert overlapping.checkpoint_bytes == 4 * overlapping.written_bytes


def test_too_little_disk_is_refused(tmp_path: Path) -> None:
    check_disk(make_experiment(min_free_gigabytes=0), tmp_path / "run", 3)
    with pytest.raises(NotEnoughDisk, match="free"):
        check_disk(make_experiment(min_free_gigabytes=1e9), tmp_path / "not" / "there" / "yet", 3)
    assert not (tmp_path / "not").exists()


def test_what_goes_while_a_run_is_measured_counts_nothing(tmp_path: Path) -> None:
    """Another process may train there: a commit renames what was listed a moment ago."""
    tmp_path.joinpath("deep", "er").mkdir(parents=True)
    tmp_path.joinpath("deep", "er", "file").write_bytes(bytes(1000))
    tmp_path.joinpath("gone").symlink_to(tmp_path / "nowhere")  # listed, and not there
    assert _bytes_in(tmp_path) == 1000 and _bytes_in(tmp_path / "nowhere") == 0


SERVED = {"method.roles.actor.engine": "vllm", "method.roles.extractor.engine": "vllm"}


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
    """GPUs of 80 GB."""
    monkeypatch.setattr("crl.policies.machine.gpu_count", lambda: gpus)
    monkeypatch.setattr("crl.policies.machine.device_bytes", lambda: 80_000_000_000)
    monkeypatch.setattr("crl.policies.machine.computes_bfloat16", lambda: True)


def test_servers_on_a_gpu_take_their_shares_and_trainers_the_rest_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    path = ROOT / "conf/gpu/one_h100.yaml"
    own = {"model": "Qwen/Qwen2.5-7B-Instruct", "dtype": "bfloat16", "lora": {}, "context": 4096}
    part = {role: {"gpu_memory_utilization": 0.4} for role in ("actor", "extractor")}
    shared, here = (
        estimate(load_experiment(path, more))
        for more in ({"runtime.servers": part}, {"method.roles.actor.engine": "transformers", "runtime.servers": {}})
    )
    [with_server], [alone] = shared.gpus, here.gpus
    assert {name for name, size in alone["sampling"].items() if size} == {
        "base", "weights", "kept trainer", "cache", "working"
    }  # fmt: skip
    assert {name: size for name, size in with_server["sampling"].items() if size} == {"server of actor": 32_000_000_000}
    assert shared.servers["actor"]["weights"] == 2 * SHAPES["Qwen/Qwen2.5-7B-Instruct"].parameters
    assert with_server["update of actor"] == alone["update of actor"] | {"sampling weights": 0}
    assert shared.device_bytes == max(32_000_000_000, sum(with_server["update of actor"].values()))
    # With weights of its own a role has a server of its own.
    two = estimate(
        load_experiment(path, {"method.roles.extractor": {**own, "engine": "vllm"}, "runtime.servers": part})
    )
    assert sum(two.gpus[0]["sampling"].values()) == 64_000_000_000 and two.handed_over == {}
    assert two.host["servers that sleep"] == 2 * shared.host["servers that sleep"]
    apart = estimate(load_experiment(path, {"runtime.servers": {"actor": {"gpu_memory_utilization": 0.3}}}))
    assert apart.servers.keys() == {"actor", "extractor"}, "other settings: a server of its own"
    on_a_gpu(monkeypatch, 0)  # where adapters are merged, for a server each
    alone = estimate(load_experiment(path, {"runtime.servers": part, "runtime.gpus": None}))
    assert alone.servers.keys() == {"actor", "extractor"}
    on_a_gpu(monkeypatch)
    elsewhere = {role: {"address": "http://gpu:8000"} for role in ("actor", "extractor")}
    made = estimate(load_experiment(path, {"runtime.servers": elsewhere}))
    assert not made.servers and "server of actor" not in made.gpus[0]["sampling"] and made.handed_over


def test_each_machine_is_reckoned_for_where_this_one_has_not_the_gpus_that_a_run_is_made_for() -> None:
    eight, two = (estimate(load_experiment(ROOT / f"conf/gpu/{name}.yaml")) for name in ("eight_gpus", "two_nodes"))
    for made in (eight, two):
        assert not made.machine.here and (made.machine.gpus, made.machine.gpu_bytes) == (8, 80_000_000_000)
        assert len(made.gpus) == 8 and all(gpu == made.gpus[0] for gpu in made.gpus)
        assert made.device_bytes < 80_000_000_000
    first, second = (made.gpus[0]["update of actor"] for made in (eight, two))
    assert second["optimizer"] == pytest.approx(first["optimizer"] / 2, rel=1e-6), "twice as many ranks"
    assert estimate(load_experiment(ROOT / "conf/gpu/one_24gb.yaml")).device_bytes < 24_000_000_000
    small = load_experiment(ROOT / "conf/tiny.yaml", {"runtime.gpus": {"gigabytes": 1e-3}})
    assert estimate(small).device_bytes > 1_000_000


@pytest.mark.parametrize(("gpus", "engines"), [(1, 3), (2, 2), (3, 1)])
def test_engines_that_share_a_gpu_are_counted_together(
    gpus: int, engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, gpus)
    changes = {**SERVED, "runtime.shards": 3, "runtime.servers": {"actor": {"gpu_memory_utilization": 0.1}}}
    servers = engines * 40_000_000_000
    assert servers < estimate(load_experiment(ROOT / "conf/tiny.yaml", changes)).device_bytes < servers + 1_000_000_000


def test_time_is_told_from_the_rounds_that_a_run_has(tmp_path: Path) -> None:
    """Each stage as it last ran; those of round 0 come once."""
    made = load_experiment(ROOT / "conf/tiny.yaml")

    def time() -> str:
        return {need.name: need.message for need in needs(made, estimate(made), 1, tmp_path / "run")}["time"]

    assert time() == "not known before the first round"
    for number, stage, seconds in (
        (0, "initialize", 500.0), (1, "collect", 70.0), (1, "update_actor", 9.0), (2, "collect", 65.0), (2, "plan", 1.0)
    ):  # fmt: skip
        folder = tmp_path / f"run/rounds/{number:04d}/{stage}"
        folder.mkdir(parents=True)
        digested = Digested(stage=stage, round=number, files={}, shared={}, inputs={}, method="", seed=0)
        (folder / MANIFEST).write_bytes(Manifest.seal(digested, {"seconds": seconds}).render())
    assert (
        time() == f"the stages of a round last took 1 min 15 s in {tmp_path / 'run'}; the longest: collect, 1 min 05 s"
    )


def test_doctor_says_what_servers_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)

    def told(**runtime: object) -> dict[str, Need]:
        settings = {f"runtime.{name}": value for name, value in runtime.items()}
        made = load_experiment(ROOT / "conf/tiny.yaml", {**SERVED, **settings})
        return {need.name: need for need in needs(made, estimate(made), 1, tmp_path)}

    elsewhere = {"extractor": {"address": "http://gpu:8000", "folder": str(tmp_path)}}
    alone, two = told(), told(shards=2, servers=elsewhere)
    assert "0.4 of a GPU, 32.0 GB: weights" in alone["vLLM server, actor"].message
    assert alone["GPU 0, sampling"].message.startswith("64.")
    assert "each has 80.0 GB" in alone["memory of a GPU"].message and alone["memory of a GPU"].fits
    assert "for the 2 engines that share one" in two["memory of a GPU"].message
    assert f"in {tmp_path} for vLLM servers" in two["disk"].message
    three = told(shards=3)["memory of a GPU"]
    assert not three.fits and "gpu_memory_utilization" in three.mend
    narrow = told(servers={"actor": {"gpu_memory_utilization": 1e-6}})["vLLM server, actor"]
    assert not narrow.fits and "holds 0 full contexts" in narrow.message


def test_without_a_gpu_a_server_is_a_process_with_weights_and_a_cache() -> None:
    plain, served = (estimate(load_experiment(ROOT / "conf/tiny.yaml", more)) for more in ({}, SERVED))
    parts = served.servers["actor"]
    assert parts["cache"] == 2**30 and parts["weights"] == 4 * tiny_with_head()
    assert served.memory_bytes == sum(parts.values()), "a server is the largest process"
    assert served.machine_bytes > plain.machine_bytes + 2 * parts["cache"]


def test_the_weights_that_servers_elsewhere_are_given_must_fit_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    changes = {**SERVED, "runtime.min_free_gigabytes": 0, "runtime.shards": 2}
    servers = {
        "actor": {"address": "http://one:8000", "folder": str(tmp_path / "shared")},
        "extractor": {"address": "http://two:8000"},
    }
    made = load_experiment(ROOT / "conf/tiny.yaml", {**changes, "runtime.servers": servers})
    each = 2 * 4 * tiny_with_head()
    assert estimate(made).handed_over == {tmp_path / "shared": each, tmp_path: each}
    enough = (still_to_write(made, tmp_path / "run", 1) or 0) + 2 * each
    monkeypatch.setattr("crl.run.files.free_bytes", lambda path: enough)
    check_disk(made, tmp_path / "run", 1)
    monkeypatch.setattr("crl.run.files.free_bytes", lambda path: enough - 1)
    with pytest.raises(NotEnoughDisk) as caught:
        check_disk(made, tmp_path / "run", 1)
    assert caught.value.where == str(tmp_path)
    assert "runtime.servers.<role>.folder" in (caught.value.next_step or "")
    monkeypatch.setattr("crl.preflight.estimate.same_disk", lambda one, other: one == other)
    check_disk(made, tmp_path / "run", 1)


def tiny() -> Experiment:
    return load_experiment(ROOT / "conf/tiny.yaml", {"runtime.min_free_gigabytes": 0})


def test_everything_that_cannot_run_is_refused_with_its_place(tmp_path: Path) -> None:
    experiment = tiny()
    check_ready(experiment, tmp_path / "run", 1)
    unknown_model = experiment.method.role("actor").model_copy(update={"model": "tinny"}).model_dump()
    family = experiment.method.families[0].model_dump()
    family["environment"] = {"kind": f"{__name__}:NowhereConfig"}
    cases = [
        ("tinny", changed(experiment, actor=unknown_model)),
        ("nosuch", changed(experiment, retrieval={"embedder": "nosuch"})),
        ("Nowhere-v0", changed(experiment, families=[family])),
    ]
    for name, each in cases:
        with pytest.raises(BadInput) as caught:
            check_ready(each, tmp_path / "run", 1)
        assert name in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_baseline_needs_no_extractor(tmp_path: Path) -> None:
    experiment = tiny()
    broken = experiment.method.role("extractor").model_copy(update={"model": "tinny"}).model_dump()
    check_ready(changed(experiment, extractor=broken, recipe="baseline"), tmp_path / "run", 1)
    without = experiment.model_dump()
    del without["method"]["roles"]["extractor"]
    without["method"]["recipe"]["kind"] = "baseline"
    check_ready(Experiment.model_validate(without), tmp_path / "run", 1)


def test_sizes_as_people_read_them() -> None:
    assert [gigabytes(count) for count in (1_500, 1_500_000, 49_000_000, 2_340_000_000)] == [
        "1.5 kB", "1.5 MB", "49.0 MB", "2.3 GB",
    ]  # fmt: skip
    assert Runtime().min_free_gigabytes == 1.0


def test_checkpoints_that_are_kept_for_good_are_no_room_for_later_ones(tmp_path: Path) -> None:
    made = make_experiment(keep_every=1)
    each = estimate(made).kept_every_bytes
    assert each > 0
    with tmp_path.joinpath("old").open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is used
    assert still_to_write(made, tmp_path, 10) == 10 * (estimate(made).round_bytes + each)
    assert still_to_write(made, tmp_path / "new", 10) == estimate(made).disk_bytes(10)


def test_shapes_of_other_architectures(tmp_path: Path) -> None:
    """Without weights by their widths, with weights as their files say; one that holds a text model is that one."""
    config = {"vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    experts = {"num_experts": 4, "moe_intermediate_size": 3, "num_experts_per_tok": 2, "dtype": "bfloat16"}
    for found, attention, feed, size in (
        (config, 4, 3 * 32, 4),
        (config | {"num_experts": 0}, 4, 3 * 32, 4),
        (config | experts, 4, 4 * 3 * 3, 2),
        ({"model_type": "seen", "text_config": config | experts}, 4, 4 * 3 * 3, 2),
        ({"vocab_size": 100, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_inner": 5}, 4, 3 * 5, 4),
    ):
        tmp_path.joinpath("config.json").write_text(json.dumps(found))
        shape = shape_of(str(tmp_path))
        assert shape is not None and shape.size == size
        assert shape.parameters == 100 * 8 + 2 * 8 * (attention * 8 + feed)


@pytest.mark.parametrize("kind", ["gpt_oss", "mamba", "gemma3_text"])
def test_parameters_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    count = parameters(kind, 512)
    write_small(kind, tmp_path, resolve_model("tiny").path, 512)
    shape = shape_of(str(tmp_path))
    assert shape is not None and shape.size == 4 and shape.parameters == pytest.approx(count, rel=0.01)


def test_room_is_needed_for_what_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(
        '{"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dtype": "bfloat16"}'
    )
    monkeypatch.setattr("crl.preflight.shapes.config_file", lambda name: tmp_path / "config.json")
    monkeypatch.setattr("crl.preflight.estimate.config_file", lambda name: tmp_path / "config.json")
    shape = shape_of("a/b")
    assert shape is not None and download_bytes("a/b") == 2 * shape.parameters
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 123}, "weight_map": {}}')
    assert download_bytes("a/b") == 123
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1e15}, "weight_map": {}}')
    role = make_experiment().method.role("actor").model_copy(update={"model": "a/b"})
    with pytest.raises(NotEnoughDisk, match="1000000"):
        check_disk(changed(make_experiment(), actor=role.model_dump()), tmp_path, 1)


def test_a_base_that_two_roles_stand_on_is_counted_once_in_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2 in float32: with one base two roles take what one takes, but for their caches and adapters."""
    monkeypatch.setattr("crl.policies.machine._memory", lambda: 0)
    one = {"model": "smollm2-135m-instruct", "lora": {"r": 8}}
    on_it = {"base": "actor", "lora": {"r": 8}}
    alone = estimate(changed(make_experiment(recipe={"kind": "baseline"}), actor=one))
    plain = changed(make_experiment(recipe={"kind": "complementary", "retrieval": {"embedder": "lexical"}}), actor=one)
    apart, shared = (estimate(changed(plain, extractor=role)) for role in (one, on_it))
    weights = 4 * SHAPES["smollm2-135m-instruct"].parameters
    assert shared.bases == {"actor": pytest.approx(weights, rel=0.01)} and apart.bases == alone.bases == {}
    assert shared.memory_bytes is not None and apart.memory_bytes is not None and alone.memory_bytes is not None
    assert shared.memory_bytes <= 1.15 * alone.memory_bytes and apart.memory_bytes > alone.memory_bytes + 0.9 * weights
    # Rounds that overlap have an engine for each track.
    twice = Experiment.model_validate(
        changed(plain, extractor=on_it, overlap=True).model_dump() | {"runtime": {"overlap_engines": 2}}
    )
    assert estimate(twice).machine_bytes > shared.machine_bytes + weights


def test_a_base_in_bfloat16_has_a_float32_copy_for_updates_where_its_file_is_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("crl.policies.machine.computes_bfloat16", lambda: True)
    roles = {"actor": {"model": "tiny", "dtype": "bfloat16", "lora": {}}, "extractor": {"base": "actor", "lora": {}}}
    plain = make_experiment(recipe={"kind": "complementary", "retrieval": {"embedder": "lexical"}})
    resolve_model("tiny")
    shape = shape_of("tiny")
    assert shape is not None and estimate(changed(plain, roles=roles)).bases == {"actor": (2 + 4) * shape.parameters}
