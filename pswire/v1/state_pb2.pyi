from pswire.v1 import options_pb2 as _options_pb2
from pswire.v1 import paramserver_pb2 as _paramserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VariableState(_message.Message):
    __slots__ = ("tensor", "version", "updates", "growth", "declared", "optimizer", "initial", "part", "vectors", "stage")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    tensor: _paramserver_pb2.Tensor
    version: int
    updates: int
    growth: float
    declared: _paramserver_pb2.Optimizer
    optimizer: _paramserver_pb2.Optimizer
    initial: _paramserver_pb2.RowInitializer
    part: _paramserver_pb2.Part
    vectors: _containers.RepeatedScalarFieldContainer[str]
    stage: int
    def __init__(self, tensor: _Optional[_Union[_paramserver_pb2.Tensor, _Mapping]] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., growth: _Optional[float] = ..., declared: _Optional[_Union[_paramserver_pb2.Optimizer, _Mapping]] = ..., optimizer: _Optional[_Union[_paramserver_pb2.Optimizer, _Mapping]] = ..., initial: _Optional[_Union[_paramserver_pb2.RowInitializer, _Mapping]] = ..., part: _Optional[_Union[_paramserver_pb2.Part, _Mapping]] = ..., vectors: _Optional[_Iterable[str]] = ..., stage: _Optional[int] = ...) -> None: ...

class ServedState(_message.Message):
    __slots__ = ("worker", "name", "version", "form", "has_rows")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    HAS_ROWS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    name: str
    version: int
    form: str
    has_rows: bool
    def __init__(self, worker: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., form: _Optional[str] = ..., has_rows: _Optional[bool] = ...) -> None: ...

class MemberState(_message.Message):
    __slots__ = ("name", "number", "incarnation", "process_nonce", "state", "steps", "staleness", "staleness_sum", "clock", "dropped", "settled", "half_pushes", "out_of_data", "tensor_transport", "loss", "pushed", "assigned", "tuned", "last_push", "must_join", "barriers", "name_key", "clipped", "quarantined", "computed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_SUM_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HALF_PUSHES_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    TENSOR_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    TUNED_FIELD_NUMBER: _ClassVar[int]
    LAST_PUSH_FIELD_NUMBER: _ClassVar[int]
    MUST_JOIN_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    NAME_KEY_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    incarnation: int
    process_nonce: int
    state: str
    steps: int
    staleness: int
    staleness_sum: int
    clock: int
    dropped: int
    settled: int
    half_pushes: int
    out_of_data: bool
    tensor_transport: str
    loss: float
    pushed: _paramserver_pb2.PushReply
    assigned: _paramserver_pb2.AssignReply
    tuned: _paramserver_pb2.TuneReply
    last_push: _paramserver_pb2.LastPush
    must_join: bool
    barriers: int
    name_key: bytes
    clipped: int
    quarantined: str
    computed: _paramserver_pb2.ComputeReply
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., incarnation: _Optional[int] = ..., process_nonce: _Optional[int] = ..., state: _Optional[str] = ..., steps: _Optional[int] = ..., staleness: _Optional[int] = ..., staleness_sum: _Optional[int] = ..., clock: _Optional[int] = ..., dropped: _Optional[int] = ..., settled: _Optional[int] = ..., half_pushes: _Optional[int] = ..., out_of_data: _Optional[bool] = ..., tensor_transport: _Optional[str] = ..., loss: _Optional[float] = ..., pushed: _Optional[_Union[_paramserver_pb2.PushReply, _Mapping]] = ..., assigned: _Optional[_Union[_paramserver_pb2.AssignReply, _Mapping]] = ..., tuned: _Optional[_Union[_paramserver_pb2.TuneReply, _Mapping]] = ..., last_push: _Optional[_Union[_paramserver_pb2.LastPush, _Mapping]] = ..., must_join: _Optional[bool] = ..., barriers: _Optional[int] = ..., name_key: _Optional[bytes] = ..., clipped: _Optional[int] = ..., quarantined: _Optional[str] = ..., computed: _Optional[_Union[_paramserver_pb2.ComputeReply, _Mapping]] = ...) -> None: ...

class MembershipState(_message.Message):
    __slots__ = ("members", "training", "finished", "last_clock", "chief", "done", "half_pushes", "last_pushes", "last_incarnation", "stalled", "joined", "forgotten", "forgotten_lost", "forgotten_finished")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LAST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    HALF_PUSHES_FIELD_NUMBER: _ClassVar[int]
    LAST_PUSHES_FIELD_NUMBER: _ClassVar[int]
    LAST_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_LOST_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FINISHED_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[MemberState]
    training: _containers.RepeatedScalarFieldContainer[str]
    finished: _containers.RepeatedScalarFieldContainer[str]
    last_clock: int
    chief: _paramserver_pb2.Sender
    done: bool
    half_pushes: int
    last_pushes: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.LastPush]
    last_incarnation: int
    stalled: _containers.RepeatedScalarFieldContainer[str]
    joined: int
    forgotten: int
    forgotten_lost: bool
    forgotten_finished: bool
    def __init__(self, members: _Optional[_Iterable[_Union[MemberState, _Mapping]]] = ..., training: _Optional[_Iterable[str]] = ..., finished: _Optional[_Iterable[str]] = ..., last_clock: _Optional[int] = ..., chief: _Optional[_Union[_paramserver_pb2.Sender, _Mapping]] = ..., done: _Optional[bool] = ..., half_pushes: _Optional[int] = ..., last_pushes: _Optional[_Iterable[_Union[_paramserver_pb2.LastPush, _Mapping]]] = ..., last_incarnation: _Optional[int] = ..., stalled: _Optional[_Iterable[str]] = ..., joined: _Optional[int] = ..., forgotten: _Optional[int] = ..., forgotten_lost: _Optional[bool] = ..., forgotten_finished: _Optional[bool] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("worker", "block", "start", "position", "cost_sum")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COST_SUM_FIELD_NUMBER: _ClassVar[int]
    worker: str
    block: int
    start: int
    position: int
    cost_sum: float
    def __init__(self, worker: _Optional[str] = ..., block: _Optional[int] = ..., start: _Optional[int] = ..., position: _Optional[int] = ..., cost_sum: _Optional[float] = ...) -> None: ...

class OpenEpoch(_message.Message):
    __slots__ = ("epoch", "done", "cost_sum", "cost_examples", "sums")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    COST_SUM_FIELD_NUMBER: _ClassVar[int]
    COST_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    done: int
    cost_sum: float
    cost_examples: int
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, epoch: _Optional[int] = ..., done: _Optional[int] = ..., cost_sum: _Optional[float] = ..., cost_examples: _Optional[int] = ..., sums: _Optional[_Iterable[float]] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("spec", "handed_out", "returned", "out", "open", "reports")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    HANDED_OUT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    spec: _paramserver_pb2.Queue
    handed_out: int
    returned: _containers.RepeatedCompositeFieldContainer[Holding]
    out: _containers.RepeatedCompositeFieldContainer[Holding]
    open: _containers.RepeatedCompositeFieldContainer[OpenEpoch]
    reports: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.EpochReport]
    def __init__(self, spec: _Optional[_Union[_paramserver_pb2.Queue, _Mapping]] = ..., handed_out: _Optional[int] = ..., returned: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., out: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., open: _Optional[_Iterable[_Union[OpenEpoch, _Mapping]]] = ..., reports: _Optional[_Iterable[_Union[_paramserver_pb2.EpochReport, _Mapping]]] = ...) -> None: ...

class LastEpoch(_message.Message):
    __slots__ = ("worker", "epoch")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker: str
    epoch: int
    def __init__(self, worker: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class VariableChanges(_message.Message):
    __slots__ = ("name", "numbers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class OrderState(_message.Message):
    __slots__ = ("count", "changes", "undelivered")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERED_FIELD_NUMBER: _ClassVar[int]
    count: int
    changes: _containers.RepeatedCompositeFieldContainer[VariableChanges]
    undelivered: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.ChangeId]
    def __init__(self, count: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[VariableChanges, _Mapping]]] = ..., undelivered: _Optional[_Iterable[_Union[_paramserver_pb2.ChangeId, _Mapping]]] = ...) -> None: ...

class VariableGroup(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class OutPortion(_message.Message):
    __slots__ = ("number", "holders")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    holders: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., holders: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerPortions(_message.Message):
    __slots__ = ("worker", "left", "claimed", "had")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    HAD_FIELD_NUMBER: _ClassVar[int]
    worker: str
    left: _containers.RepeatedScalarFieldContainer[int]
    claimed: _containers.RepeatedScalarFieldContainer[int]
    had: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[str] = ..., left: _Optional[_Iterable[int]] = ..., claimed: _Optional[_Iterable[int]] = ..., had: _Optional[_Iterable[int]] = ...) -> None: ...

class PortionsState(_message.Message):
    __slots__ = ("out", "workers", "losses", "alone")
    OUT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    out: _containers.RepeatedCompositeFieldContainer[OutPortion]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerPortions]
    losses: _containers.RepeatedScalarFieldContainer[float]
    alone: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, out: _Optional[_Iterable[_Union[OutPortion, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerPortions, _Mapping]]] = ..., losses: _Optional[_Iterable[float]] = ..., alone: _Optional[_Iterable[int]] = ...) -> None: ...

class MinimizationState(_message.Message):
    __slots__ = ("name", "evaluation", "counted", "portions", "backups", "backups_won", "end", "point", "coordinator", "term", "note")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PORTIONS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_WON_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    name: str
    evaluation: _paramserver_pb2.Evaluation
    counted: _containers.RepeatedScalarFieldContainer[int]
    portions: PortionsState
    backups: int
    backups_won: int
    end: str
    point: _paramserver_pb2.AcceptedPoint
    coordinator: _paramserver_pb2.Sender
    term: int
    note: str
    def __init__(self, name: _Optional[str] = ..., evaluation: _Optional[_Union[_paramserver_pb2.Evaluation, _Mapping]] = ..., counted: _Optional[_Iterable[int]] = ..., portions: _Optional[_Union[PortionsState, _Mapping]] = ..., backups: _Optional[int] = ..., backups_won: _Optional[int] = ..., end: _Optional[str] = ..., point: _Optional[_Union[_paramserver_pb2.AcceptedPoint, _Mapping]] = ..., coordinator: _Optional[_Union[_paramserver_pb2.Sender, _Mapping]] = ..., term: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("shard", "shards", "identity", "consistency", "handling", "cut", "timeline", "global_step", "last_step", "applied", "dropped", "repeated", "lost_pushes", "members", "variables", "queues", "epochs", "stalenesses", "changes", "places", "states", "served", "order", "groups", "job", "jobs", "stopped", "max_gradient_norm", "clipped", "minimizations", "awaited")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    HANDLING_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    LOST_PUSHES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STALENESSES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    MAX_GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    MINIMIZATIONS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    identity: int
    consistency: str
    handling: str
    cut: int
    timeline: int
    global_step: int
    last_step: int
    applied: int
    dropped: int
    repeated: int
    lost_pushes: int
    members: MembershipState
    variables: _containers.RepeatedCompositeFieldContainer[VariableState]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    epochs: _containers.RepeatedCompositeFieldContainer[LastEpoch]
    stalenesses: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.StalenessCount]
    changes: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.Change]
    places: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.Place]
    states: _containers.RepeatedScalarFieldContainer[int]
    served: _containers.RepeatedCompositeFieldContainer[ServedState]
    order: OrderState
    groups: _containers.RepeatedCompositeFieldContainer[VariableGroup]
    job: _paramserver_pb2.Job
    jobs: _containers.RepeatedCompositeFieldContainer[_paramserver_pb2.JobReport]
    stopped: str
    max_gradient_norm: str
    clipped: int
    minimizations: _containers.RepeatedCompositeFieldContainer[MinimizationState]
    awaited: int
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., identity: _Optional[int] = ..., consistency: _Optional[str] = ..., handling: _Optional[str] = ..., cut: _Optional[int] = ..., timeline: _Optional[int] = ..., global_step: _Optional[int] = ..., last_step: _Optional[int] = ..., applied: _Optional[int] = ..., dropped: _Optional[int] = ..., repeated: _Optional[int] = ..., lost_pushes: _Optional[int] = ..., members: _Optional[_Union[MembershipState, _Mapping]] = ..., variables: _Optional[_Iterable[_Union[VariableState, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[LastEpoch, _Mapping]]] = ..., stalenesses: _Optional[_Iterable[_Union[_paramserver_pb2.StalenessCount, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[_paramserver_pb2.Change, _Mapping]]] = ..., places: _Optional[_Iterable[_Union[_paramserver_pb2.Place, _Mapping]]] = ..., states: _Optional[_Iterable[int]] = ..., served: _Optional[_Iterable[_Union[ServedState, _Mapping]]] = ..., order: _Optional[_Union[OrderState, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[VariableGroup, _Mapping]]] = ..., job: _Optional[_Union[_paramserver_pb2.Job, _Mapping]] = ..., jobs: _Optional[_Iterable[_Union[_paramserver_pb2.JobReport, _Mapping]]] = ..., stopped: _Optional[str] = ..., max_gradient_norm: _Optional[str] = ..., clipped: _Optional[int] = ..., minimizations: _Optional[_Iterable[_Union[MinimizationState, _Mapping]]] = ..., awaited: _Optional[int] = ...) -> None: ...

class Overdue(_message.Message):
    __slots__ = ("worker", "queue")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    queue: str
    def __init__(self, worker: _Optional[str] = ..., queue: _Optional[str] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ("lost", "overdue", "stalled", "takers", "evaluators", "gives_up")
    LOST_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    TAKERS_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    GIVES_UP_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedScalarFieldContainer[str]
    overdue: _containers.RepeatedCompositeFieldContainer[Overdue]
    stalled: _containers.RepeatedScalarFieldContainer[str]
    takers: _containers.RepeatedScalarFieldContainer[str]
    evaluators: _containers.RepeatedScalarFieldContainer[str]
    gives_up: bool
    def __init__(self, lost: _Optional[_Iterable[str]] = ..., overdue: _Optional[_Iterable[_Union[Overdue, _Mapping]]] = ..., stalled: _Optional[_Iterable[str]] = ..., takers: _Optional[_Iterable[str]] = ..., evaluators: _Optional[_Iterable[str]] = ..., gives_up: _Optional[bool] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("join", "renew", "leave", "register", "pull", "push", "assign", "tune", "take", "cut", "restore", "tick", "barrier", "stop", "reset", "intervene", "compute", "evaluate", "takeportion", "claimportion")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    TUNE_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    INTERVENE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    TAKEPORTION_FIELD_NUMBER: _ClassVar[int]
    CLAIMPORTION_FIELD_NUMBER: _ClassVar[int]
    join: _paramserver_pb2.JoinRequest
    renew: _paramserver_pb2.RenewRequest
    leave: _paramserver_pb2.LeaveRequest
    register: _paramserver_pb2.RegisterRequest
    pull: _paramserver_pb2.PullRequest
    push: _paramserver_pb2.PushRequest
    assign: _paramserver_pb2.AssignRequest
    tune: _paramserver_pb2.TuneRequest
    take: _paramserver_pb2.TakeRequest
    cut: _paramserver_pb2.CutRequest
    restore: _paramserver_pb2.RestoreRequest
    tick: Tick
    barrier: _paramserver_pb2.BarrierRequest
    stop: _paramserver_pb2.StopRequest
    reset: _paramserver_pb2.ResetRequest
    intervene: _paramserver_pb2.InterveneRequest
    compute: _paramserver_pb2.ComputeRequest
    evaluate: _paramserver_pb2.EvaluateRequest
    takeportion: _paramserver_pb2.TakePortionRequest
    claimportion: _paramserver_pb2.ClaimPortionRequest
    def __init__(self, join: _Optional[_Union[_paramserver_pb2.JoinRequest, _Mapping]] = ..., renew: _Optional[_Union[_paramserver_pb2.RenewRequest, _Mapping]] = ..., leave: _Optional[_Union[_paramserver_pb2.LeaveRequest, _Mapping]] = ..., register: _Optional[_Union[_paramserver_pb2.RegisterRequest, _Mapping]] = ..., pull: _Optional[_Union[_paramserver_pb2.PullRequest, _Mapping]] = ..., push: _Optional[_Union[_paramserver_pb2.PushRequest, _Mapping]] = ..., assign: _Optional[_Union[_paramserver_pb2.AssignRequest, _Mapping]] = ..., tune: _Optional[_Union[_paramserver_pb2.TuneRequest, _Mapping]] = ..., take: _Optional[_Union[_paramserver_pb2.TakeRequest, _Mapping]] = ..., cut: _Optional[_Union[_paramserver_pb2.CutRequest, _Mapping]] = ..., restore: _Optional[_Union[_paramserver_pb2.RestoreRequest, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., barrier: _Optional[_Union[_paramserver_pb2.BarrierRequest, _Mapping]] = ..., stop: _Optional[_Union[_paramserver_pb2.StopRequest, _Mapping]] = ..., reset: _Optional[_Union[_paramserver_pb2.ResetRequest, _Mapping]] = ..., intervene: _Optional[_Union[_paramserver_pb2.InterveneRequest, _Mapping]] = ..., compute: _Optional[_Union[_paramserver_pb2.ComputeRequest, _Mapping]] = ..., evaluate: _Optional[_Union[_paramserver_pb2.EvaluateRequest, _Mapping]] = ..., takeportion: _Optional[_Union[_paramserver_pb2.TakePortionRequest, _Mapping]] = ..., claimportion: _Optional[_Union[_paramserver_pb2.ClaimPortionRequest, _Mapping]] = ...) -> None: ...
