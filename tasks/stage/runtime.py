"""How to run: the half of a profile that never enters a key, in groups by who reads them.

A stage names the groups that it reads (`@stage(runtime=…)`). It honours every field of such a group, or refuses by name
a combination that it can't honour. None is ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator

from storage.credentials import names_a_secret
from tasks.stage import machine

MOST = 1024  # of workers, threads and processes: more than a host has cores, and as many as libraries can start
LEAST_MEMORY = 16_000_000  # bytes; with less, a stage's tables split into thousands of pieces, which takes minutes
SIZE = re.compile(r"[0-9]+|[0-9]+(\.[0-9]+)?\s*[kmgt]i?b", re.IGNORECASE)
MOST_PORT = 65_535
LONGEST_HOURS = 8_760  # a year
ENDPOINT = "api/v1/lineage"  # of OpenLineage, as its clients have it


def _size(value: Any) -> Any:
    """Raises ValueError unless the whole text is a size: ByteSize would accept any text that begins with a number."""
    text = value.strip() if isinstance(value, str) else value
    number = isinstance(text, int) and not isinstance(text, bool) and text >= 0
    if not number and not (isinstance(text, str) and SIZE.fullmatch(text)):
        raise ValueError("write a whole number of bytes, or a number with its unit, such as 8GB, 512MiB or 1.5GB")
    return text


def _port(value: str) -> str:
    """Raises ValueError for a `host:port` whose port is out of range."""
    if not 1 <= int(value.rpartition(":")[2]) <= MOST_PORT:
        raise ValueError(f"a port is a number from 1 to {MOST_PORT}")
    return value


def _hidden_in_logs(name: str) -> str:
    """Raises ValueError for a variable whose value errors and logs wouldn't hide."""
    if not names_a_secret(name):
        raise ValueError(
            "errors and logs hide only values of variables whose names end in _API_KEY or _TOKEN: rename it"
        )
    return name


EndpointUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
KeyVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_hidden_in_logs)]
PoolName = Annotated[str, Field(pattern=r"^[^\s/%&<>]{1,100}$")]  # as Prefect allows them, but for spaces
ZeroStage = Annotated[
    Literal[0, 1, 2, 3],
    Field(
        description="what DeepSpeed shards: 1 optimizer states, 2 gradients too, 3 weights too. FSDP always shards all "
        "three. With 3 it frees the weights after the forward pass and gathers them again for the backward pass"
    ),
]


class RuntimeGroup(BaseModel):
    """A group of settings that the same stages read."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataRuntime(RuntimeGroup):
    """How shards of documents are processed."""

    workers: int = Field(
        default_factory=machine.cores, ge=1, le=MOST, description="workers: processes or threads (default: every core)"
    )
    memory_limit: Annotated[ByteSize, BeforeValidator(_size), Field(ge=LEAST_MEMORY)] | None = Field(
        None,
        description="memory for a stage's tables, such as 8GB, at least 16MB. Larger tables are partitioned and "
        "spilled to disk (default: a quarter of the memory)",
    )

    executor: Literal["auto", "process", "thread", "dask", "ray"] = Field(
        "auto",
        description="what processes shards. auto: threads, one for work that holds the interpreter's lock, and "
        "processes once they would save time. dask and ray are extras to install, for one host or many",
    )
    address: Annotated[str, Field(pattern=r"^(auto|(tcp|tls|ray)://\S+|[^\s/:]+:\d{1,5})$")] | None = Field(
        None,
        description="a running cluster: for Dask its scheduler, tcp://host:8786, for Ray ray://host:10001, host:6379 "
        "or auto, the one of this host (default: `workers` workers on this host, which end with the run)",
    )
    connections: int = Field(2, ge=1, le=64, description="requests that this machine makes to a host at a time")
    patience_minutes: float = Field(
        60.0, ge=0, description="how long a server that refuses (403, 429, 503) or is away is asked again"
    )

    @model_validator(mode="after")
    def _check_address(self) -> DataRuntime:
        of_dask = self.address is not None and self.address.startswith(("tcp://", "tls://"))
        if self.address is not None and self.executor not in ("dask", "ray"):
            raise ValueError("an address is for executor=dask or executor=ray")
        if self.address is not None and of_dask != (self.executor == "dask"):
            form = "tcp://host:8786" if self.executor == "dask" else "ray://host:10001, host:6379 or auto"
            raise ValueError(f"an address for executor={self.executor} is {form}")
        return self

    @property
    def working_memory(self) -> int:
        """`memory_limit` in bytes; without one, a quarter of the memory."""
        return int(self.memory_limit) if self.memory_limit is not None else machine.memory() // 4


class ComputeRuntime(RuntimeGroup):
    """The device and the threads that models run on."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    threads: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="CPU threads of each process (default: every core, which the training processes of a host share "
        "evenly). Another number rounds sums differently",
    )
    timeout_minutes: float | None = Field(
        None, gt=0, description="end a child process that runs longer. A rerun resumes from its last checkpoint"
    )

    def cpu_threads(self, processes: int = 1) -> int:
        """CPU threads of each of `processes` on this host. By default they share the cores that they may use."""
        return self.threads or max(1, machine.cores() // processes)


class TrainingRuntime(RuntimeGroup):
    """Processes, checkpoints and logs of everything that trains."""

    processes: int = Field(1, ge=1, le=MOST, description="training processes per host, one for each GPU")
    launcher: Literal["auto", "deepspeed", "torchrun"] = Field(
        "auto",
        description="what starts the processes of several hosts. auto: DeepSpeed's runner for a hostfile, torchrun "
        "otherwise. On one host deepspeed is DeepSpeed's launcher, and the others are ours",
    )
    hostfile: str | None = Field(None, description="DeepSpeed hostfile, for training on several hosts")
    rendezvous: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$"), AfterValidator(_port)] | None = Field(
        None, description="host:port of the host where all hosts of a training meet"
    )
    hosts: int = Field(1, ge=1, description="hosts that meet at the rendezvous. Under Slurm, those of the allocation")
    log_every: int = Field(10, ge=1, description="training steps between two progress lines")
    checkpoint_every: int = Field(100, ge=1, description="training steps between two checkpoints")
    stop_grace_seconds: float = Field(
        25,
        ge=0,
        description="how long an interrupted training may take to finish its step and write a checkpoint. Slurm and "
        "Kubernetes kill 30 seconds after SIGTERM, Docker after 10. 0: end at once, a rerun goes on from the last one",
    )
    keep_checkpoints: int = Field(2, ge=1, description="how many of the newest checkpoints to keep")
    side_by_side: bool = Field(
        False,
        description="train even while another run trains on the same GPUs, or on the CPU of this machine. Otherwise "
        "wait until it has finished",
    )


class Pools(BaseModel):
    """Prefect's work pools and the stages that each makes. The run itself makes a stage without a pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: PoolName | None = Field(None, description="work pool of the stages from download to tokenize, and of base")
    training: PoolName | None = Field(None, description="work pool of pretrain and of all post-training")
    release: PoolName | None = Field(None, description="work pool of evaluate, draft and export")
    stages: dict[str, PoolName | None] = Field(
        {},
        description="work pools of single stages, which override those of their group (null: made by the run itself)",
    )
    wait_minutes: float = Field(
        5, gt=0, description="how long to wait for a worker of a pool. Then the run ends, and a rerun resumes"
    )


class PretrainRuntime(RuntimeGroup):
    """How pretraining spreads a model over processes and survives faults."""

    engine: Literal["deepspeed", "ddp", "fsdp"] = Field(
        "deepspeed", description="DeepSpeed's ZeRO, or torch's DDP (replicates the model) or FSDP2 (shards it)"
    )
    zero_stage: ZeroStage = 0
    replicate: int = Field(
        1,
        ge=1,
        description="hybrid sharding (engine fsdp): number of groups that each hold a full copy of the shards, for "
        "instance one per host. Only gradients travel between groups",
    )
    offload: Literal["none", "optimizer"] = Field(
        "none",
        description="optimizer: keep its states and run its step in CPU memory (engine fsdp, or deepspeed with ZeRO)",
    )
    tensor_parallel: int = Field(
        1, ge=1, description="processes that split each layer's heads and feed-forward rows (engine ddp or fsdp)"
    )
    context_parallel: int = Field(
        1,
        ge=1,
        description="processes that each hold a part of every row's tokens, and exchange them for heads in attention "
        "(Ulysses, with engine ddp or fsdp and without pipeline_parallel): for "
        "contexts whose activations fit no device",
    )
    pipeline_parallel: int = Field(
        1, ge=1, description="pipeline stages: processes that each hold a run of blocks (engine ddp)"
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        description="sequences in a forward pass. The global batch stays what the profile says (default: what fits "
        "the usual device)",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activation checkpointing: full recomputes every block (a third more compute, far less memory), "
        "selective keeps the outputs of matrix products",
    )
    compile: Literal["auto", "off", "default", "reduce-overhead", "max-autotune"] = Field(
        "auto",
        description="torch.compile mode of each block (engine ddp, fsdp, or deepspeed with zero_stage 0). auto: "
        "default on a CPU, for trainings so long that it pays, and off on a GPU. reduce-overhead uses CUDA graphs, for "
        "small models on a GPU (ddp only)",
    )
    async_checkpoints: Literal["auto", "on", "off"] = Field(
        "auto", description="write checkpoints while training continues. auto: on a GPU, where the engine can"
    )
    keep_every: int | None = Field(
        None,
        ge=1,
        description="steps between checkpoints that are also kept until the run ends, so that a run that went wrong "
        "long ago can roll back further. To keep models for good: pretrain.snapshot_every",
    )
    branches: bool = Field(
        False,
        description="with pretrain.schedule wsd, in a store that is a folder: keep the state at the start of the "
        "decay, and begin from that of a shorter training, if all else is the same. The result stays the same, bit for "
        "bit on a CPU",
    )
    preflight: Literal["auto", "always", "never"] = Field(
        "auto",
        description="check before the first step that the run can learn, fits and resumes. auto: before new runs of "
        "500 steps or more",
    )
    restarts: int = Field(
        2,
        ge=0,
        description="how often to restart from the last checkpoint when a process dies or hangs. The count starts "
        "again at each new checkpoint",
    )
    hang_minutes: float = Field(30, gt=0, description="end and restart a run whose step takes longer than this")

    @property
    def compiles(self) -> bool:
        """Whether blocks are compiled, however short the training is."""
        return self.compile not in ("auto", "off")


class PosttrainRuntime(RuntimeGroup):
    """How fine-tuning spreads a model over processes."""

    engine: Literal["ddp", "deepspeed", "fsdp"] = Field(
        "ddp", description="torch's DDP (replicates the model), DeepSpeed's ZeRO or torch's FSDP2 (both shard it)"
    )
    zero_stage: ZeroStage = 0
    offload: Literal["none", "optimizer"] = Field(
        "none", description="optimizer: keep its states and run its step in CPU memory (engine deepspeed)"
    )
    compile: Literal["off", "default"] = Field("off", description="torch.compile the model (engine ddp)")
    micro_batch: int | None = Field(
        None, ge=1, description="rows in a forward pass. The global batch stays what the profile says"
    )
    recompute: Literal["none", "full"] = Field("none", description="activation checkpointing of every block")
    context_parallel: int = Field(
        1,
        ge=1,
        description="sft, dpo, orpo, cpo: processes that each hold a part of every row's tokens, and exchange them for "
        "heads in attention (Ulysses, with engine ddp or fsdp): for rows whose activations fit no device",
    )
    packing: bool = Field(
        False,
        description="sft: several conversations in a row of up to max_length tokens, kept apart, in place of padding. "
        "micro_batch counts such rows",
    )


class Price(RuntimeGroup):
    """The price of an endpoint's tokens, in any currency."""

    input: float = Field(0.0, ge=0, allow_inf_nan=False, description="of a million tokens of requests")
    output: float = Field(0.0, ge=0, allow_inf_nan=False, description="of a million tokens of answers")

    def of(self, tokens_in: float, tokens_out: float) -> float:
        """The price of these numbers of tokens, of requests and of answers."""
        return (tokens_in * self.input + tokens_out * self.output) / 1e6


class EndpointRuntime(RuntimeGroup):
    """How requests are sent to an OpenAI-compatible endpoint."""

    concurrent_requests: int = Field(4, ge=1, le=MOST, description="requests at once")
    timeout_seconds: float = Field(300, gt=0, description="how long an answer may take before the request is repeated")
    retries: int = Field(
        6,
        ge=0,
        description="how often to repeat a request after 408, 429, 5xx, a timeout, no answer or an invalid one. After "
        "another 4xx never",
    )
    backoff_seconds: float = Field(
        1, ge=0, description="pause before the first repetition, twice as long before each further one"
    )
    price: Price | None = Field(
        None,
        description="price of the tokens of judges and of `feedback`, by which reports say the cost (null: they count "
        "tokens). `synthesise` has its own",
    )


class SynthesiseRuntime(RuntimeGroup):
    """Where the model of `synthesise` answers."""

    url: EndpointUrl | None = Field(
        None,
        description="address of an OpenAI-compatible endpoint, such as https://host/v1 (/chat/completions is added). "
        "The chosen documents are sent there",
    )
    api_key_env: KeyVariable | None = Field(
        None, description="environment variable with the key, such as OPENAI_API_KEY (null: none is sent)"
    )
    price: Price | None = Field(
        None, description="price of its tokens, by which plans and reports say the cost (null: they count tokens)"
    )


class OpenLineage(RuntimeGroup):
    """A catalogue that runs and artifacts are reported to, as events of OpenLineage."""

    url: EndpointUrl | None = Field(
        None, description="address of a server that takes the events, such as http://marquez:5000"
    )
    endpoint: str = Field(ENDPOINT, pattern=r"^[^\s?#]+$", description="path below `url` that the events are posted to")
    api_key_env: KeyVariable | None = Field(
        None, description="environment variable with the key for `url`, such as OPENLINEAGE_API_KEY"
    )
    file: str | None = Field(
        None, min_length=1, description="file on the machine of the run that the events are appended to, one a line"
    )
    namespace: str = Field("gristmill", pattern=r"^\S+$", description="namespace of the jobs in the catalogue")

    @model_validator(mode="after")
    def _has_a_receiver(self) -> Self:
        if self.url is None and self.file is None:
            raise ValueError("it needs `url` or `file`: where the events go")
        if self.url is None and (self.api_key_env is not None or self.endpoint != ENDPOINT):
            raise ValueError("`api_key_env` and `endpoint` are for `url`, which is not set: remove them")
        return self


class TrackingRuntime(RuntimeGroup):
    """Records of pretraining besides its log, and of whole runs."""

    insight_every: int | None = Field(
        None,
        ge=1,
        description="steps between records of activations, gradients, updates and attention of every layer. Such a "
        "step takes a few times as long, and the memory of a copy of the weights",
    )
    profile_steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="steps to record with torch's profiler, one trace each"
    )
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        (), description="experiment trackers to report to. Each is an extra to install"
    )
    pipeline: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        (),
        description="experiment trackers to report whole runs to: the profile, each stage's counts, scores and the "
        "places of artifacts, under `tracking/` of the store or of its local cache",
    )
    wandb_online: bool = Field(
        False, description="let Weights & Biases upload. By default it writes to this machine only"
    )
    openlineage: OpenLineage | None = Field(
        None, description="catalogue to report whole runs to. Its client is an extra to install (null: none)"
    )


class Runtime(RuntimeGroup):
    """How to run: never part of a key."""

    store: str = Field(
        "store", min_length=1, description="where artifacts live: a folder, or an fsspec URL such as s3://bucket/path"
    )
    approve: tuple[str, ...] = Field(
        (),
        description="stages that a person must approve before they are made: with y at a terminal, or with Resume on "
        "the page of a Prefect run. Scheduled runs go on by themselves",
    )
    approve_hours: float = Field(
        24, gt=0, le=LONGEST_HOURS, description="how long a Prefect run waits for approval before it fails"
    )
    pools: Pools = Field(default_factory=Pools, description="work pools that make stages instead of the run itself")
    data: DataRuntime = Field(
        default_factory=DataRuntime, description="read by download to tokenize, and by sft and dpo for near-duplicates"
    )
    compute: ComputeRuntime = Field(
        default_factory=ComputeRuntime, description="read by pretrain to export, and by models that the filter trains"
    )
    training: TrainingRuntime = Field(default_factory=TrainingRuntime, description="read by pretrain, sft and dpo")
    pretrain: PretrainRuntime = Field(default_factory=PretrainRuntime, description="pretrain")
    posttrain: PosttrainRuntime = Field(default_factory=PosttrainRuntime, description="sft and dpo")
    endpoint: EndpointRuntime = Field(default_factory=EndpointRuntime, description="synthesise and feedback")
    synthesise: SynthesiseRuntime = Field(default_factory=SynthesiseRuntime, description="synthesise")
    tracking: TrackingRuntime = Field(default_factory=TrackingRuntime, description="pretrain")

    @property
    def rank_threads(self) -> int:
        """CPU threads of each training process on this host."""
        return self.compute.cpu_threads(self.training.processes)

    def with_changes(self, group: str, **changes: object) -> Runtime:
        """A copy with other values, unchecked, in some fields of a group."""
        changed: RuntimeGroup = getattr(self, group)
        return self.model_copy(update={group: changed.model_copy(update=changes)})
