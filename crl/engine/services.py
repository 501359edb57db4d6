"""What the engine lends its stages: environments, policies, trainers, the embedder. All of it is cache.

At most one set of weights per role is held: those of the next round replace those of the last. A trainer stays from
round to round. Its optimizer state is several times its model, so at most one is held, no sampling copy of its role
beside it, and none on a GPU when a server starts or wakes there: then it rests in the machine's memory, if it can.
Where there is room (`policies.machine.all_stay`) both trainers stay, and new weights are read into the living copy. A
vLLM server stays as long as this process; on a GPU it sleeps while a trainer works. The frozen base of several roles
(`frozen_base`) stays, unless such a server starts. A trainer that a stage asked for counts as dirty until the stage
says which update it has reached (`trained`); a stage that failed in between never hands on half an update.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.config import EmbedderUse, RoleConfig
from crl.config.engines import ServerConfig
from crl.engine.targets import last_runtime
from crl.errors import BadInput, RecordDamaged
from crl.faults import close
from crl.protocols import Embedder, Environment, LoadedPolicy, Policy, Served
from crl.records import Weights, rows_of
from crl.run.data_files import check_data
from crl.run.find import beside
from crl.run.seeds import seed_for

if TYPE_CHECKING:
    from crl.config.models import Ways
    from crl.engine.frozen_base import FrozenBase
    from crl.engine.vllm_weights import ServedWeights, VllmServers
    from crl.learn.trainer import Trainer
    from crl.policies.sources import ModelSource
    from crl.run.directory import RunDirectory


class EngineServices:
    """The `Services` of one process of the engine, for one run."""

    def __init__(self, run: RunDirectory, *, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self._run, self._method = run, run.method
        self._environments: dict[tuple[str, int], Environment] = {}
        """By task family, and how many of its changes have come."""
        self._policies: dict[str, tuple[str, LoadedPolicy]] = {}
        self._servers: VllmServers | None = None
        """Those of vLLM that were started here: they live as long as this process."""
        self._templates: dict[str, str] = {}
        self._used: dict[str, dict[str, str]] = {}
        self._embedder: Embedder | None = None
        self._sources: dict[str, ModelSource] = {}
        self._frozen: dict[str, FrozenBase] = {}
        """Bases that several roles stand on, by the role whose model they are."""
        self._trainers: dict[str, tuple[str, Trainer]] = {}
        """(weights digest, trainer) by role; an empty digest while a stage trains it."""
        self._stage_seed = 0
        self._torch_ready = False
        self._ways: dict[str, Ways] | None = None
        self._tried_again: tuple[int, str, int] | None = None
        """Round, stage and number of the further attempt that environments were made anew for."""

    # -- what stages ask for ---------------------------------------------------------------------------------------

    def environment(self, family: str, round_number: int) -> Environment:
        """The environment of a task family as it is in a round, made once."""
        config = next((entry for entry in self._method.families if entry.name == family), None)
        if config is None:
            names = ", ".join(entry.name for entry in self._method.families)
            raise BadInput(f"there is no task family {family!r}", expected=f"one of {names}")
        world = config.in_round(round_number)
        key = family, sum(change.round <= round_number for change in config.changes)
        check_data(world)  # also where it is made already: games are read when they are played
        if key not in self._environments:
            from crl.envs import make_environment

            self._environments[key] = make_environment(world)
        return self._environments[key]

    def policy(self, role: str, weights: Weights) -> Policy:
        """The role's sampling model with the weights of a row. Raises RecordDamaged where their files are missing."""
        policy = self._policy(role, weights)
        self._templates[role] = policy.chat.template
        if isinstance(way := getattr(policy, "way", None), str):  # a server has ways of its own
            self._used.setdefault(role, {})["sampling"] = way
        return policy

    def _policy(self, role: str, weights: Weights) -> Policy:
        held = self._policies.get(role)
        if held is not None and held[0] == weights.weights_digest:
            self._make_room_for_servers()
            return held[1]
        self._prepare_torch()
        # Before anything is taken out: where files are missing, what is held stays held, and is closed by `release`.
        config = self._method.role(role)
        model_path, checkpoint = self._base(role, config, weights), self._checkpoint(weights)
        # Not here while it changes: a failure in between must not leave a mixture behind.
        held = self._policies.pop(role, None)
        if held is not None and isinstance(held[1], Served):
            held[1].hand_over(checkpoint, weights.weights_digest)
            policy: LoadedPolicy = held[1]
        elif held is not None and self._all_small() and held[1].take_weights(checkpoint or model_path):
            policy = held[1]
        else:
            if held is not None:
                held[1].close()
                held = None
                _collect()
            from crl.policies import load_policy

            with self._seeded("weights", role):
                policy = load_policy(
                    config,
                    model_path,
                    checkpoint,
                    threads=self._method.threads,
                    server=self._server(role) if config.engine.SERVED else None,
                    weights=weights.weights_digest,
                    way=None if (ways := self._ways_of(role)) is None else ways.sampling,
                    base=self._shared_base(role, model_path),
                    served=self._served(role, model_path) if config.engine.kind == "vllm" else None,
                )
        self._policies[role] = (weights.weights_digest, policy)
        self._make_room_for_servers()
        return policy

    def _ways_of(self, role: str) -> Ways | None:
        """Those of the run; None where the model is tried when it is loaded."""
        if self._ways is None:
            from crl.engine.ways import ways_of

            self._ways = ways_of(self._run)
        return self._ways.get(self._method.owner(role))

    def _make_room_for_servers(self) -> None:
        """On a GPU a server takes its share of the memory when it starts or wakes: a trainer that is only kept goes
        before."""
        from crl.policies.machine import gpu_count

        if self._servers is not None and self._servers.rests and gpu_count() and not self._all_small():
            self._set_aside([role for role, (digest, _) in self._trainers.items() if digest])
            self._frozen.clear()  # no role of theirs is sampled from here: the engine is the base's
            _collect()

    def _server(self, role: str) -> ServerConfig | None:
        return last_runtime(self._run.path).servers.get(self._method.owner(role))

    def _served(self, role: str, model_path: Path) -> ServedWeights:
        from crl.engine.vllm_weights import VllmServers, roles_beside

        self._servers = self._servers or VllmServers()
        owner = self._method.owner(role)
        roles, config = roles_beside(self._method, owner, lambda name: self._server(name) or ServerConfig())
        return self._servers.weights(owner, roles, model_path, config, self._method.threads)

    def trainer(self, role: str, weights: Weights) -> Trainer:
        """The role's trainer standing at the weights of a row, optimizer state included."""
        held = self._trainers.get(role)
        small = self._all_small()
        if not small and self._servers is not None:
            self._servers.sleep()
        if not small:  # on a base that others stand on as well, one has hardly more than an adapter
            self._set_aside([each for each in self._trainers if each != role and self._method.base(each) is None])
        if held is not None and held[0] == weights.weights_digest:
            trainer = held[1]
            trainer.wake()
        else:
            self._drop_trainers([role])
            # These weights are about to change: the sampling copy would only take room. A server takes new ones.
            copies = [name for name in self._policies if self._method.owner(name) == role]
            copies = [name for name in copies if self._method.role(name).engine.kind != "vllm"]
            if not small and copies:
                for name in copies:
                    self._policies.pop(name)[1].close()
                _collect()
            self._prepare_torch()
            trainer = self._new_trainer(role, weights)
        self._trainers[role] = ("", trainer)
        if isinstance(way := getattr(trainer, "way", None), str):
            self._used.setdefault(role, {})["update"] = way
        return trainer

    def trained(self, role: str, weights: Weights) -> None:
        """Say that the trainer of a role has reached the weights of a new row: the next round continues from them.

        Every rank must say so; the row that counts is that of rank 0, which alone makes one.
        """
        if role not in self._trainers:
            raise AssertionError(f"no trainer of {role} is lent out")
        trainer = self._trainers[role][1]
        self._trainers[role] = (trainer.from_first(weights.weights_digest), trainer)

    def model_digest(self, role: str) -> str:
        """SHA-256 over the files of a role's base model, or of the embedder; a name without files is its own digest."""
        if role == "embedder":
            from crl.policies.embedders import embedder_digest

            return embedder_digest(self._embedder_use().name)
        return self._source(self._method.role(role).model).digest

    def model_path(self, role: str) -> Path:
        """Directory of the base model's transformers checkpoint."""
        return self._source(self._method.role(role).model).path

    def embedder(self) -> Embedder:
        """The embedder of the retrieval config, made once."""
        if self._embedder is None:
            use = self._embedder_use()
            self._check_embedder()
            if use.name != "lexical":
                self._prepare_torch()
            from crl.policies.embedders import load_embedder

            self._embedder = load_embedder(use.name, use.query_instruction)
        return self._embedder

    # -- what the worker asks for ----------------------------------------------------------------------------------

    def chat_templates(self) -> dict[str, str]:
        """Which chat template writes the prompts of each role whose model the job asked for."""
        return dict(self._templates)

    def ways(self) -> dict[str, dict[str, str]]:
        """In which way each role was sampled from and updated whose model the job asked for."""
        return {role: dict(found) for role, found in self._used.items()}

    def begin(self, round_number: int, stage: str, part: int | None, *, attempt: int = 1) -> None:
        """Before each job: a trainer left by a failed stage goes, and torch's generators start from the job's seed.

        A stage that is tried again gets environments that are made anew: what is broken may be one of them.
        """
        if attempt > 1 and self._tried_again != (round_number, stage, attempt):
            self._tried_again = (round_number, stage, attempt)
            self._close_environments()
        self._drop_trainers([role for role, (digest, _) in self._trainers.items() if not digest])
        self._templates.clear()
        self._used.clear()
        _give_back()
        place: tuple[str | int, ...] = ("torch", round_number, stage, -1 if part is None else part)
        self._stage_seed = _torch_seed(self._method.seed, *(str(item) for item in place))
        if self._torch_ready:
            _torch().manual_seed(self._stage_seed)

    def release(self) -> None:
        """Free every model; servers sleep where that frees memory. Environments stay: they are small."""
        for _, policy in self._policies.values():
            policy.close()
        self._policies.clear()
        if self._servers is not None:
            self._servers.sleep()
        if self._embedder is not None:
            from crl.policies.embedders import load_embedder

            self._embedder = None
            load_embedder.cache_clear()  # it keeps one per process
        self._set_aside(list(self._trainers))
        self._frozen.clear()
        _collect()

    def close(self) -> None:
        """Free everything."""
        self._drop_trainers(list(self._trainers))
        self.release()
        if self._servers is not None:
            self._servers.close()
        self._close_environments()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _close_environments(self) -> None:
        for (family, _), environment in self._environments.items():
            close(f"the environment of family {family}", environment.close)
        self._environments.clear()

    def _new_trainer(self, role: str, weights: Weights) -> Trainer:
        from crl.learn.trainer import Trainer
        from crl.policies.machine import computed

        config = computed(self._method.role(role))
        model_path = self._base(role, config, weights)
        with self._seeded("weights", role):
            return Trainer(
                config,
                model_path=model_path,
                checkpoint=self._checkpoint(weights),
                threads=self._method.threads,
                seed=_torch_seed(self._method.seed, "weights", role),
                way=None if (ways := self._ways_of(role)) is None else ways.update,
                base=self._shared_base(role, model_path),
            )

    def _shared_base(self, role: str, path: Path) -> Callable[[Any], Any] | None:
        """What makes the base of a role in a type; None: no other role stands on it."""
        owner = self._method.base(role)
        if owner is None:
            return None
        from crl.engine.frozen_base import FrozenBase

        if owner not in self._frozen:
            self._frozen[owner] = FrozenBase(path)
        return self._frozen[owner].model

    def _source(self, name: str) -> ModelSource:
        if name not in self._sources:
            from crl.policies.sources import resolve_model

            with beside(self._run.path):
                self._sources[name] = resolve_model(name)
        return self._sources[name]

    def _embedder_use(self) -> EmbedderUse:
        use = self._method.recipe.embedder()
        if use is None:
            raise AssertionError(f"recipe {self._method.recipe.kind} has no embedder")
        return use

    def _check_embedder(self) -> None:
        """Refuse another embedder under the same name: vectors of two models cannot be compared."""
        if not self._run.is_complete(0, "initialize"):
            return
        try:
            rows = rows_of(Weights, self._run.read(0, "initialize", Weights))
        except RecordDamaged:
            return  # nothing is trained on this record; what `crl mend` makes of it is proven by its digest
        expected = next((row.base_digest for row in rows if row.role == "embedder"), None)
        found = self.model_digest("embedder")
        if expected is not None and found != expected:
            raise RecordDamaged(
                f"the embedder {self._embedder_use().name} has digest {found}",
                expected=f"{expected}, as when the run was begun",
                where="method.recipe.retrieval.embedder",
                next_step="restore the embedder's package, or begin a new experiment",
            )

    def _base(self, role: str, config: RoleConfig, weights: Weights) -> Path:
        """Directory of the base model, after making sure that it is the one the run was begun with."""
        # Of a model on the Hub, the commit that the run was begun with.
        commit = weights.source.startswith(f"{config.model.partition('@')[0]}@")
        self._sources[config.model] = source = self._source(weights.source if commit else config.model)
        if source.digest != weights.base_digest:
            raise RecordDamaged(
                f"the base model of the {role} has digest {source.digest}",
                expected=f"{weights.base_digest}, as when the run was begun",
                where=str(source.path),
                next_step="restore the model's files, or begin a new experiment",
            )
        return source.path

    def _checkpoint(self, weights: Weights) -> Path | None:
        if weights.checkpoint is None:
            return None
        path = Path(self._run.path) / weights.checkpoint
        if not path.is_dir():
            raise RecordDamaged(
                f"the checkpoint of the {weights.role} after round {weights.round} is missing",
                expected="a directory with its weights",
                where=str(path),
                next_step="`crl verify` says whether it was lost; `runtime.keep_every: 1` keeps all of later rounds",
            )
        return path

    def _prepare_torch(self) -> None:
        """Threads and determinism, once, before the first model."""
        if self._torch_ready:
            return
        torch = _torch()
        from crl.policies.machine import settle_torch

        settle_torch(self._method.threads)
        with contextlib.suppress(RuntimeError):  # too late once anything ran in parallel; then it is one by default
            torch.set_num_interop_threads(1)
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        self._torch_ready = True
        torch.manual_seed(self._stage_seed)

    @contextmanager
    def _seeded(self, *place: str) -> Iterator[None]:
        """Torch's generators at the seed of a place, then as before: a cached model must make no difference."""
        torch = _torch()
        with torch.random.fork_rng():
            torch.manual_seed(_torch_seed(self._method.seed, *place))
            yield

    def _all_small(self) -> bool:
        """Whether the models of the recipe's roles are so small that nothing has to make room for anything."""
        from crl.policies.machine import all_stay, gpu_count

        size = 4 * sum(parameters(path) for path in {self.model_path(role) for role in self._method.owners()})
        return all_stay(self._method, size, on_gpu=gpu_count() > 0)

    def _set_aside(self, roles: Sequence[str]) -> None:
        """Have trainers leave the GPU, or the memory of a machine without one."""
        from crl.policies.machine import gpu_count

        stay = [role for role in roles if gpu_count() and self._trainers[role][0] and self._trainers[role][1].rest()]
        self._drop_trainers([role for role in roles if role not in stay])

    def _drop_trainers(self, roles: Sequence[str]) -> None:
        for role in roles:
            held = self._trainers.pop(role, None)
            if held is not None:
                held[1].dispose()
                del held
                _collect()


@functools.cache
def parameters(model: Path) -> int:
    """Numbers in a model's files of weights, by their headers. Raises BadInput where one cannot be read."""
    from crl.policies.sources import numbers_by_type

    return numbers_by_type(model).total()


@contextmanager
def services_here(run: RunDirectory) -> Iterator[EngineServices]:
    """The services of this process, which stands for an engine; closed at the end. Enter before torch is imported."""
    os.environ.update(prepare_environment(run.method.threads))
    services = EngineServices(run)
    try:
        yield services
    finally:
        services.close()


def prepare_environment(threads: int) -> dict[str, str]:
    """Variables an engine process must start with: libraries read them once, when they are imported."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Some task runners set it for their workers; it would win over the first one.
        "OPENBLAS_NUM_THREADS": str(threads),
        # Waiting threads sleep instead of spinning: beside other load on the same cores, spinning made a decoding step
        # of SmolLM2 11 times slower (2.1 s against 0.19 s, 2 threads on 2 busy cores); on idle cores it costs nothing
        # that shows.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        # Progress bars of libraries would tear the log; the stage reports its own progress.
        "TQDM_DISABLE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # No telemetry. Whether the hub may be reached is left to HF_HUB_OFFLINE: models may come from it.
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "GX_ANALYTICS_ENABLED": "false",
    }


def _torch() -> Any:
    import torch

    return torch


def _torch_seed(experiment_seed: int, *place: str) -> int:
    return int(seed_for(experiment_seed, *place).generate_state(1)[0])


def _give_back() -> None:
    """Have the C library return what was freed: of a 1B model it kept 3 GB of activations, beside what came next."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # a C library without it
            _c_library().malloc_trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL:
    """Opened once: each time makes a class, and classes wait for a full collection."""
    return ctypes.CDLL(None)


def _collect() -> None:
    gc.collect()
    if "torch" in sys.modules and _torch().cuda.is_available():
        _torch().cuda.empty_cache()
