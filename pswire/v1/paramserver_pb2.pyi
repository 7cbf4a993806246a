from google.protobuf import struct_pb2 as _struct_pb2
from pswire.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_APPLIED: _ClassVar[Outcome]
    OUTCOME_REPEATED: _ClassVar[Outcome]
    OUTCOME_DROPPED: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_APPLIED: Outcome
OUTCOME_REPEATED: Outcome
OUTCOME_DROPPED: Outcome

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "inline", "streamed", "shared", "packing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    inline: bytes
    streamed: bool
    shared: Shared
    packing: Packing
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., inline: _Optional[bytes] = ..., streamed: _Optional[bool] = ..., shared: _Optional[_Union[Shared, _Mapping]] = ..., packing: _Optional[_Union[Packing, _Mapping]] = ...) -> None: ...

class Shared(_message.Message):
    __slots__ = ("segment", "offset")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Packing(_message.Message):
    __slots__ = ("form", "parts")
    FORM_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    form: str
    parts: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, form: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("register", "pull", "push", "assign", "registered", "pulled", "pushed", "assigned", "take", "taken", "attach", "attached", "chunk", "renew", "renewed", "compute", "computed", "evaluate", "evaluation", "take_portion", "portion", "claim_portion", "claim", "refusal", "data", "answer_region", "padding", "traceparent")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TAKE_PORTION_FIELD_NUMBER: _ClassVar[int]
    PORTION_FIELD_NUMBER: _ClassVar[int]
    CLAIM_PORTION_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ANSWER_REGION_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    register: RegisterRequest
    pull: PullRequest
    push: PushRequest
    assign: AssignRequest
    registered: RegisterReply
    pulled: PullReply
    pushed: PushReply
    assigned: AssignReply
    take: TakeRequest
    taken: TakeReply
    attach: AttachRequest
    attached: AttachReply
    chunk: bytes
    renew: RenewRequest
    renewed: RenewReply
    compute: ComputeRequest
    computed: ComputeReply
    evaluate: EvaluateRequest
    evaluation: EvaluateReply
    take_portion: TakePortionRequest
    portion: TakePortionReply
    claim_portion: ClaimPortionRequest
    claim: ClaimPortionReply
    refusal: Refusal
    data: bytes
    answer_region: Region
    padding: bytes
    traceparent: str
    def __init__(self, register: _Optional[_Union[RegisterRequest, _Mapping]] = ..., pull: _Optional[_Union[PullRequest, _Mapping]] = ..., push: _Optional[_Union[PushRequest, _Mapping]] = ..., assign: _Optional[_Union[AssignRequest, _Mapping]] = ..., registered: _Optional[_Union[RegisterReply, _Mapping]] = ..., pulled: _Optional[_Union[PullReply, _Mapping]] = ..., pushed: _Optional[_Union[PushReply, _Mapping]] = ..., assigned: _Optional[_Union[AssignReply, _Mapping]] = ..., take: _Optional[_Union[TakeRequest, _Mapping]] = ..., taken: _Optional[_Union[TakeReply, _Mapping]] = ..., attach: _Optional[_Union[AttachRequest, _Mapping]] = ..., attached: _Optional[_Union[AttachReply, _Mapping]] = ..., chunk: _Optional[bytes] = ..., renew: _Optional[_Union[RenewRequest, _Mapping]] = ..., renewed: _Optional[_Union[RenewReply, _Mapping]] = ..., compute: _Optional[_Union[ComputeRequest, _Mapping]] = ..., computed: _Optional[_Union[ComputeReply, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateRequest, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluateReply, _Mapping]] = ..., take_portion: _Optional[_Union[TakePortionRequest, _Mapping]] = ..., portion: _Optional[_Union[TakePortionReply, _Mapping]] = ..., claim_portion: _Optional[_Union[ClaimPortionRequest, _Mapping]] = ..., claim: _Optional[_Union[ClaimPortionReply, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., data: _Optional[bytes] = ..., answer_region: _Optional[_Union[Region, _Mapping]] = ..., padding: _Optional[bytes] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("segment", "offset", "nbytes")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    segment: int
    offset: int
    nbytes: int
    def __init__(self, segment: _Optional[int] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("segment", "nbytes")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    segment: int
    nbytes: int
    def __init__(self, segment: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("reason", "socket", "token")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    reason: str
    socket: str
    token: bytes
    def __init__(self, reason: _Optional[str] = ..., socket: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class Sender(_message.Message):
    __slots__ = ("worker", "incarnation")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class MemberClaims(_message.Message):
    __slots__ = ("sender", "process_nonce", "job")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    process_nonce: int
    job: Job
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., process_nonce: _Optional[int] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "shard", "shards", "process_nonce", "tensor_transport", "states", "timeline", "steps", "settled", "job", "resume", "program", "cut", "name_key", "workers")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NONCE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    NAME_KEY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    shard: int
    shards: int
    process_nonce: int
    tensor_transport: str
    states: _containers.RepeatedScalarFieldContainer[int]
    timeline: int
    steps: int
    settled: int
    job: Job
    resume: bool
    program: str
    cut: int
    name_key: bytes
    workers: int
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., shard: _Optional[int] = ..., shards: _Optional[int] = ..., process_nonce: _Optional[int] = ..., tensor_transport: _Optional[str] = ..., states: _Optional[_Iterable[int]] = ..., timeline: _Optional[int] = ..., steps: _Optional[int] = ..., settled: _Optional[int] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., resume: _Optional[bool] = ..., program: _Optional[str] = ..., cut: _Optional[int] = ..., name_key: _Optional[bytes] = ..., workers: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("number", "name", "session")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    session: int
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., session: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("incarnation", "number", "lease", "global_step", "consistency", "staleness", "chief", "state", "timeline", "cut", "steps", "job", "note", "stopped", "token", "direct")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    number: int
    lease: float
    global_step: int
    consistency: str
    staleness: str
    chief: bool
    state: int
    timeline: int
    cut: int
    steps: int
    job: Job
    note: str
    stopped: str
    token: bytes
    direct: DirectAddress
    def __init__(self, incarnation: _Optional[int] = ..., number: _Optional[int] = ..., lease: _Optional[float] = ..., global_step: _Optional[int] = ..., consistency: _Optional[str] = ..., staleness: _Optional[str] = ..., chief: _Optional[bool] = ..., state: _Optional[int] = ..., timeline: _Optional[int] = ..., cut: _Optional[int] = ..., steps: _Optional[int] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., note: _Optional[str] = ..., stopped: _Optional[str] = ..., token: _Optional[bytes] = ..., direct: _Optional[_Union[DirectAddress, _Mapping]] = ...) -> None: ...

class DirectAddress(_message.Message):
    __slots__ = ("port", "socket")
    PORT_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    port: int
    socket: str
    def __init__(self, port: _Optional[int] = ..., socket: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("member", "shard", "authorization")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    member: bytes
    shard: int
    authorization: str
    def __init__(self, member: _Optional[bytes] = ..., shard: _Optional[int] = ..., authorization: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("sender", "idle", "tensor_transport", "settled", "half_pushes", "cut", "written_by_all", "timeline")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HALF_PUSHES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BY_ALL_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    idle: bool
    tensor_transport: str
    settled: int
    half_pushes: int
    cut: int
    written_by_all: int
    timeline: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., idle: _Optional[bool] = ..., tensor_transport: _Optional[str] = ..., settled: _Optional[int] = ..., half_pushes: _Optional[int] = ..., cut: _Optional[int] = ..., written_by_all: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("global_step", "waiting_for", "chief", "cut", "written", "stopped", "push_held", "direct")
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    PUSH_HELD_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    waiting_for: str
    chief: bool
    cut: int
    written: _containers.RepeatedScalarFieldContainer[int]
    stopped: str
    push_held: bool
    direct: DirectAddress
    def __init__(self, global_step: _Optional[int] = ..., waiting_for: _Optional[str] = ..., chief: _Optional[bool] = ..., cut: _Optional[int] = ..., written: _Optional[_Iterable[int]] = ..., stopped: _Optional[str] = ..., push_held: _Optional[bool] = ..., direct: _Optional[_Union[DirectAddress, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("sender", "failed", "done")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    failed: bool
    done: bool
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., failed: _Optional[bool] = ..., done: _Optional[bool] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    def __init__(self, done: _Optional[bool] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("fields",)
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _struct_pb2.Struct
    def __init__(self, fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class RowInitializer(_message.Message):
    __slots__ = ("fields",)
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _struct_pb2.Struct
    def __init__(self, fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("first", "of")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    first: int
    of: int
    def __init__(self, first: _Optional[int] = ..., of: _Optional[int] = ...) -> None: ...

class Declaration(_message.Message):
    __slots__ = ("tensor", "optimizer", "initial", "part", "stage")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    optimizer: Optimizer
    initial: RowInitializer
    part: Part
    stage: int
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., initial: _Optional[_Union[RowInitializer, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., stage: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("name", "shard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    shard: int
    def __init__(self, name: _Optional[str] = ..., shard: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("sender", "declarations", "places", "dry_run", "states", "cut")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    DECLARATIONS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    declarations: _containers.RepeatedCompositeFieldContainer[Declaration]
    places: _containers.RepeatedCompositeFieldContainer[Place]
    dry_run: bool
    states: _containers.RepeatedScalarFieldContainer[int]
    cut: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., declarations: _Optional[_Iterable[_Union[Declaration, _Mapping]]] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., dry_run: _Optional[bool] = ..., states: _Optional[_Iterable[int]] = ..., cut: _Optional[int] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("tensor", "version")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    version: int
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("values", "global_step", "frontier", "behind")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    global_step: int
    frontier: Frontier
    behind: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., global_step: _Optional[int] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ..., behind: _Optional[_Iterable[str]] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("name", "rows", "slot")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: Tensor
    slot: str
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[_Union[Tensor, _Mapping]] = ..., slot: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("sender", "names", "choices", "known_versions", "encoding", "after", "of_cut")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    OF_CUT_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    names: _containers.RepeatedScalarFieldContainer[str]
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    known_versions: _containers.RepeatedScalarFieldContainer[int]
    encoding: str
    after: _containers.RepeatedCompositeFieldContainer[ChangeId]
    of_cut: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., known_versions: _Optional[_Iterable[int]] = ..., encoding: _Optional[str] = ..., after: _Optional[_Iterable[_Union[ChangeId, _Mapping]]] = ..., of_cut: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("values", "global_step", "frontier")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    global_step: int
    frontier: Frontier
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., global_step: _Optional[int] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ...) -> None: ...

class Gradient(_message.Message):
    __slots__ = ("tensor", "version", "indices", "rows")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    version: int
    indices: Tensor
    rows: int
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., version: _Optional[int] = ..., indices: _Optional[_Union[Tensor, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class ChangeId(_message.Message):
    __slots__ = ("sender", "sequence", "shards")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    sequence: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ...) -> None: ...

class Frontier(_message.Message):
    __slots__ = ("decided", "undelivered")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERED_FIELD_NUMBER: _ClassVar[int]
    decided: int
    undelivered: _containers.RepeatedCompositeFieldContainer[ChangeId]
    def __init__(self, decided: _Optional[int] = ..., undelivered: _Optional[_Iterable[_Union[ChangeId, _Mapping]]] = ...) -> None: ...

class RemoteWeights(_message.Message):
    __slots__ = ("name", "served_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    served_at: int
    def __init__(self, name: _Optional[str] = ..., served_at: _Optional[int] = ...) -> None: ...

class UpdateGroup(_message.Message):
    __slots__ = ("number", "members", "pushes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    number: int
    members: _containers.RepeatedCompositeFieldContainer[ChangeId]
    pushes: int
    def __init__(self, number: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ChangeId, _Mapping]]] = ..., pushes: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("queue", "block", "position", "cost_sum")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COST_SUM_FIELD_NUMBER: _ClassVar[int]
    queue: str
    block: int
    position: int
    cost_sum: float
    def __init__(self, queue: _Optional[str] = ..., block: _Optional[int] = ..., position: _Optional[int] = ..., cost_sum: _Optional[float] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("sender", "sequence", "gradients", "loss", "pull", "group", "known_versions", "encoding", "shards", "remote", "after", "global_step", "cut", "progress")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    sequence: int
    gradients: _containers.RepeatedCompositeFieldContainer[Gradient]
    loss: float
    pull: _containers.RepeatedScalarFieldContainer[str]
    group: UpdateGroup
    known_versions: _containers.RepeatedScalarFieldContainer[int]
    encoding: str
    shards: _containers.RepeatedScalarFieldContainer[int]
    remote: _containers.RepeatedCompositeFieldContainer[RemoteWeights]
    after: _containers.RepeatedCompositeFieldContainer[ChangeId]
    global_step: int
    cut: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., gradients: _Optional[_Iterable[_Union[Gradient, _Mapping]]] = ..., loss: _Optional[float] = ..., pull: _Optional[_Iterable[str]] = ..., group: _Optional[_Union[UpdateGroup, _Mapping]] = ..., known_versions: _Optional[_Iterable[int]] = ..., encoding: _Optional[str] = ..., shards: _Optional[_Iterable[int]] = ..., remote: _Optional[_Iterable[_Union[RemoteWeights, _Mapping]]] = ..., after: _Optional[_Iterable[_Union[ChangeId, _Mapping]]] = ..., global_step: _Optional[int] = ..., cut: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("outcome", "staleness", "global_step", "values", "reason", "group", "frontier", "cut")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    staleness: int
    global_step: int
    values: _containers.RepeatedCompositeFieldContainer[Value]
    reason: str
    group: UpdateGroup
    frontier: Frontier
    cut: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., staleness: _Optional[int] = ..., global_step: _Optional[int] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., reason: _Optional[str] = ..., group: _Optional[_Union[UpdateGroup, _Mapping]] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ..., cut: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("tensor", "first_row")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    first_row: int
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., first_row: _Optional[int] = ...) -> None: ...

class AssignRequest(_message.Message):
    __slots__ = ("sender", "sequence", "assignments", "add", "shards", "remote", "after", "cut", "portions")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    PORTIONS_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    sequence: int
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    add: bool
    shards: _containers.RepeatedScalarFieldContainer[int]
    remote: _containers.RepeatedScalarFieldContainer[str]
    after: _containers.RepeatedCompositeFieldContainer[ChangeId]
    cut: int
    portions: CountedPortions
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., add: _Optional[bool] = ..., shards: _Optional[_Iterable[int]] = ..., remote: _Optional[_Iterable[str]] = ..., after: _Optional[_Iterable[_Union[ChangeId, _Mapping]]] = ..., cut: _Optional[int] = ..., portions: _Optional[_Union[CountedPortions, _Mapping]] = ...) -> None: ...

class AssignReply(_message.Message):
    __slots__ = ("outcome", "versions", "global_step", "frontier", "reason")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    versions: _containers.RepeatedScalarFieldContainer[int]
    global_step: int
    frontier: Frontier
    reason: str
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., versions: _Optional[_Iterable[int]] = ..., global_step: _Optional[int] = ..., frontier: _Optional[_Union[Frontier, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class TuneRequest(_message.Message):
    __slots__ = ("sender", "sequence", "names", "optimizer", "fields", "cut")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    sequence: int
    names: _containers.RepeatedScalarFieldContainer[str]
    optimizer: Optimizer
    fields: _containers.RepeatedScalarFieldContainer[str]
    cut: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., fields: _Optional[_Iterable[str]] = ..., cut: _Optional[int] = ...) -> None: ...

class TuneReply(_message.Message):
    __slots__ = ("outcome", "global_step")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    global_step: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., global_step: _Optional[int] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("kind", "vector", "source", "other", "number")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    vector: str
    source: str
    other: str
    number: float
    def __init__(self, kind: _Optional[str] = ..., vector: _Optional[str] = ..., source: _Optional[str] = ..., other: _Optional[str] = ..., number: _Optional[float] = ...) -> None: ...

class ComputeRequest(_message.Message):
    __slots__ = ("sender", "sequence", "names", "operations", "minimization", "note", "cut", "term")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    MINIMIZATION_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    sequence: int
    names: _containers.RepeatedScalarFieldContainer[str]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    minimization: str
    note: str
    cut: int
    term: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., minimization: _Optional[str] = ..., note: _Optional[str] = ..., cut: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class ComputeReply(_message.Message):
    __slots__ = ("outcome", "results", "global_step", "note", "term")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    results: _containers.RepeatedScalarFieldContainer[float]
    global_step: int
    note: str
    term: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., results: _Optional[_Iterable[float]] = ..., global_step: _Optional[int] = ..., note: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("name", "size", "block", "epochs", "seed", "limit", "in_order", "evaluates")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    EVALUATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    block: int
    epochs: int
    seed: int
    limit: int
    in_order: bool
    evaluates: bool
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., block: _Optional[int] = ..., epochs: _Optional[int] = ..., seed: _Optional[int] = ..., limit: _Optional[int] = ..., in_order: _Optional[bool] = ..., evaluates: _Optional[bool] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("number", "epoch", "start", "stop")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    start: int
    stop: int
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("number", "cost_sum", "sums")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COST_SUM_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    number: int
    cost_sum: float
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, number: _Optional[int] = ..., cost_sum: _Optional[float] = ..., sums: _Optional[_Iterable[float]] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("sender", "queue", "finished", "reports_received", "give_back", "timeline")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REPORTS_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    queue: Queue
    finished: Finished
    reports_received: int
    give_back: bool
    timeline: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., queue: _Optional[_Union[Queue, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., reports_received: _Optional[int] = ..., give_back: _Optional[bool] = ..., timeline: _Optional[int] = ...) -> None: ...

class EpochReport(_message.Message):
    __slots__ = ("queue", "epoch", "cost", "examples", "sums")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    epoch: int
    cost: float
    examples: int
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, queue: _Optional[str] = ..., epoch: _Optional[int] = ..., cost: _Optional[float] = ..., examples: _Optional[int] = ..., sums: _Optional[_Iterable[float]] = ...) -> None: ...

class TakeReply(_message.Message):
    __slots__ = ("block", "done", "waiting_for", "reports", "chief", "cut", "stopped")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    block: Block
    done: bool
    waiting_for: str
    reports: _containers.RepeatedCompositeFieldContainer[EpochReport]
    chief: bool
    cut: int
    stopped: str
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., done: _Optional[bool] = ..., waiting_for: _Optional[str] = ..., reports: _Optional[_Iterable[_Union[EpochReport, _Mapping]]] = ..., chief: _Optional[bool] = ..., cut: _Optional[int] = ..., stopped: _Optional[str] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("number", "examples", "portion")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    PORTION_FIELD_NUMBER: _ClassVar[int]
    number: int
    examples: int
    portion: int
    def __init__(self, number: _Optional[int] = ..., examples: _Optional[int] = ..., portion: _Optional[int] = ...) -> None: ...

class Portion(_message.Message):
    __slots__ = ("number", "start", "stop", "alone")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    number: int
    start: int
    stop: int
    alone: bool
    def __init__(self, number: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., alone: _Optional[bool] = ...) -> None: ...

class CountedPortions(_message.Message):
    __slots__ = ("name", "evaluation", "numbers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    evaluation: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., evaluation: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class AcceptedPoint(_message.Message):
    __slots__ = ("iterations", "evaluations", "loss", "gradient", "step")
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    iterations: int
    evaluations: int
    loss: float
    gradient: float
    step: float
    def __init__(self, iterations: _Optional[int] = ..., evaluations: _Optional[int] = ..., loss: _Optional[float] = ..., gradient: _Optional[float] = ..., step: _Optional[float] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("sender", "name", "evaluation", "end", "timeline", "point", "wait", "cut", "term")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    name: str
    evaluation: Evaluation
    end: str
    timeline: int
    point: AcceptedPoint
    wait: bool
    cut: int
    term: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., name: _Optional[str] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., end: _Optional[str] = ..., timeline: _Optional[int] = ..., point: _Optional[_Union[AcceptedPoint, _Mapping]] = ..., wait: _Optional[bool] = ..., cut: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class EvaluateReply(_message.Message):
    __slots__ = ("number", "counted", "loss", "waiting_for", "end", "stopped", "cut")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    number: int
    counted: int
    loss: float
    waiting_for: str
    end: str
    stopped: str
    cut: int
    def __init__(self, number: _Optional[int] = ..., counted: _Optional[int] = ..., loss: _Optional[float] = ..., waiting_for: _Optional[str] = ..., end: _Optional[str] = ..., stopped: _Optional[str] = ..., cut: _Optional[int] = ...) -> None: ...

class TakePortionRequest(_message.Message):
    __slots__ = ("sender", "name", "evaluation", "holding", "withdrawn", "timeline")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    name: str
    evaluation: int
    holding: _containers.RepeatedScalarFieldContainer[int]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    timeline: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., name: _Optional[str] = ..., evaluation: _Optional[int] = ..., holding: _Optional[_Iterable[int]] = ..., withdrawn: _Optional[_Iterable[int]] = ..., timeline: _Optional[int] = ...) -> None: ...

class TakePortionReply(_message.Message):
    __slots__ = ("evaluation", "portion", "push", "stop", "end", "waiting_for", "chief", "stopped", "cut")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PORTION_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    portion: Portion
    push: bool
    stop: _containers.RepeatedScalarFieldContainer[int]
    end: str
    waiting_for: str
    chief: bool
    stopped: str
    cut: int
    def __init__(self, evaluation: _Optional[int] = ..., portion: _Optional[_Union[Portion, _Mapping]] = ..., push: _Optional[bool] = ..., stop: _Optional[_Iterable[int]] = ..., end: _Optional[str] = ..., waiting_for: _Optional[str] = ..., chief: _Optional[bool] = ..., stopped: _Optional[str] = ..., cut: _Optional[int] = ...) -> None: ...

class ClaimPortionRequest(_message.Message):
    __slots__ = ("sender", "name", "evaluation", "portion", "loss", "timeline")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PORTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    name: str
    evaluation: int
    portion: int
    loss: float
    timeline: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., name: _Optional[str] = ..., evaluation: _Optional[int] = ..., portion: _Optional[int] = ..., loss: _Optional[float] = ..., timeline: _Optional[int] = ...) -> None: ...

class ClaimPortionReply(_message.Message):
    __slots__ = ("counted",)
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    counted: bool
    def __init__(self, counted: _Optional[bool] = ...) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("number", "holder", "release")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    number: int
    holder: Sender
    release: bool
    def __init__(self, number: _Optional[int] = ..., holder: _Optional[_Union[Sender, _Mapping]] = ..., release: _Optional[bool] = ...) -> None: ...

class CutReply(_message.Message):
    __slots__ = ("number", "complete", "waiting_for", "written", "held", "problem", "storage", "gone")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    number: int
    complete: bool
    waiting_for: str
    written: bool
    held: bool
    problem: str
    storage: bool
    gone: bool
    def __init__(self, number: _Optional[int] = ..., complete: _Optional[bool] = ..., waiting_for: _Optional[str] = ..., written: _Optional[bool] = ..., held: _Optional[bool] = ..., problem: _Optional[str] = ..., storage: _Optional[bool] = ..., gone: _Optional[bool] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("timeline", "cut")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    cut: int
    def __init__(self, timeline: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("timeline", "cut", "lost", "cuts")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    cut: int
    lost: bool
    cuts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, timeline: _Optional[int] = ..., cut: _Optional[int] = ..., lost: _Optional[bool] = ..., cuts: _Optional[_Iterable[int]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("first_variable", "detail")
    FIRST_VARIABLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    first_variable: int
    detail: bool
    def __init__(self, first_variable: _Optional[int] = ..., detail: _Optional[bool] = ...) -> None: ...

class VariableStatus(_message.Message):
    __slots__ = ("tensor", "version", "updates", "optimizer", "slots", "nbytes", "part", "table", "bytes_in", "bytes_out", "sampled", "unchanged")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    tensor: Tensor
    version: int
    updates: int
    optimizer: Optimizer
    slots: _containers.RepeatedScalarFieldContainer[str]
    nbytes: int
    part: Part
    table: bool
    bytes_in: int
    bytes_out: int
    sampled: int
    unchanged: int
    def __init__(self, tensor: _Optional[_Union[Tensor, _Mapping]] = ..., version: _Optional[int] = ..., updates: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., slots: _Optional[_Iterable[str]] = ..., nbytes: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., table: _Optional[bool] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., sampled: _Optional[int] = ..., unchanged: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "incarnation", "number", "state", "steps", "staleness", "staleness_sum", "loss", "epoch", "lease_left", "dropped", "waiting_for", "tensor_transport", "chief", "clipped", "cost", "waited", "held", "encoding", "gradient", "gradient_mean", "error", "error_time", "drop_reason", "training", "empty", "jumps", "jump", "jumped_at", "first_loss", "peak_cost", "between_blocks", "quarantined")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_SUM_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    TENSOR_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_MEAN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_TIME_FIELD_NUMBER: _ClassVar[int]
    DROP_REASON_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    JUMPS_FIELD_NUMBER: _ClassVar[int]
    JUMP_FIELD_NUMBER: _ClassVar[int]
    JUMPED_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOSS_FIELD_NUMBER: _ClassVar[int]
    PEAK_COST_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    number: int
    state: str
    steps: int
    staleness: int
    staleness_sum: int
    loss: float
    epoch: int
    lease_left: float
    dropped: int
    waiting_for: str
    tensor_transport: str
    chief: bool
    clipped: int
    cost: float
    waited: float
    held: float
    encoding: str
    gradient: float
    gradient_mean: float
    error: str
    error_time: float
    drop_reason: str
    training: bool
    empty: int
    jumps: int
    jump: float
    jumped_at: int
    first_loss: float
    peak_cost: float
    between_blocks: bool
    quarantined: bool
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[str] = ..., steps: _Optional[int] = ..., staleness: _Optional[int] = ..., staleness_sum: _Optional[int] = ..., loss: _Optional[float] = ..., epoch: _Optional[int] = ..., lease_left: _Optional[float] = ..., dropped: _Optional[int] = ..., waiting_for: _Optional[str] = ..., tensor_transport: _Optional[str] = ..., chief: _Optional[bool] = ..., clipped: _Optional[int] = ..., cost: _Optional[float] = ..., waited: _Optional[float] = ..., held: _Optional[float] = ..., encoding: _Optional[str] = ..., gradient: _Optional[float] = ..., gradient_mean: _Optional[float] = ..., error: _Optional[str] = ..., error_time: _Optional[float] = ..., drop_reason: _Optional[str] = ..., training: _Optional[bool] = ..., empty: _Optional[int] = ..., jumps: _Optional[int] = ..., jump: _Optional[float] = ..., jumped_at: _Optional[int] = ..., first_loss: _Optional[float] = ..., peak_cost: _Optional[float] = ..., between_blocks: _Optional[bool] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("pushes", "bytes_in", "bytes_out")
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    pushes: float
    bytes_in: float
    bytes_out: float
    def __init__(self, pushes: _Optional[float] = ..., bytes_in: _Optional[float] = ..., bytes_out: _Optional[float] = ...) -> None: ...

class Staleness(_message.Message):
    __slots__ = ("p50", "p99")
    P50_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    p50: int
    p99: int
    def __init__(self, p50: _Optional[int] = ..., p99: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("global_step", "worker", "names", "optimizer", "others")
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    worker: str
    names: _containers.RepeatedScalarFieldContainer[str]
    optimizer: Optimizer
    others: int
    def __init__(self, global_step: _Optional[int] = ..., worker: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., others: _Optional[int] = ...) -> None: ...

class LastPush(_message.Message):
    __slots__ = ("worker", "incarnation", "sequence", "shards")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    sequence: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ...) -> None: ...

class StorageStatus(_message.Message):
    __slots__ = ("folder", "last", "age", "writing", "waiting_for", "problem", "journal", "journal_bytes", "timeline", "lost_pushes")
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    LOST_PUSHES_FIELD_NUMBER: _ClassVar[int]
    folder: str
    last: int
    age: float
    writing: int
    waiting_for: str
    problem: str
    journal: bool
    journal_bytes: int
    timeline: int
    lost_pushes: int
    def __init__(self, folder: _Optional[str] = ..., last: _Optional[int] = ..., age: _Optional[float] = ..., writing: _Optional[int] = ..., waiting_for: _Optional[str] = ..., problem: _Optional[str] = ..., journal: _Optional[bool] = ..., journal_bytes: _Optional[int] = ..., timeline: _Optional[int] = ..., lost_pushes: _Optional[int] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("spec", "epoch", "done", "blocks_out")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_OUT_FIELD_NUMBER: _ClassVar[int]
    spec: Queue
    epoch: int
    done: int
    blocks_out: int
    def __init__(self, spec: _Optional[_Union[Queue, _Mapping]] = ..., epoch: _Optional[int] = ..., done: _Optional[int] = ..., blocks_out: _Optional[int] = ...) -> None: ...

class MinimizationStatus(_message.Message):
    __slots__ = ("name", "evaluation", "portions", "counted", "out", "claimed", "backups", "backups_won", "end", "point")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PORTIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_WON_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    evaluation: int
    portions: int
    counted: int
    out: int
    claimed: int
    backups: int
    backups_won: int
    end: str
    point: AcceptedPoint
    def __init__(self, name: _Optional[str] = ..., evaluation: _Optional[int] = ..., portions: _Optional[int] = ..., counted: _Optional[int] = ..., out: _Optional[int] = ..., claimed: _Optional[int] = ..., backups: _Optional[int] = ..., backups_won: _Optional[int] = ..., end: _Optional[str] = ..., point: _Optional[_Union[AcceptedPoint, _Mapping]] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("variables", "workers", "live", "queues")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    variables: int
    workers: int
    live: int
    queues: int
    def __init__(self, variables: _Optional[int] = ..., workers: _Optional[int] = ..., live: _Optional[int] = ..., queues: _Optional[int] = ...) -> None: ...

class StalenessCount(_message.Message):
    __slots__ = ("staleness", "pushes")
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    staleness: int
    pushes: int
    def __init__(self, staleness: _Optional[int] = ..., pushes: _Optional[int] = ...) -> None: ...

class EventReport(_message.Message):
    __slots__ = ("number", "time", "kind", "text", "warning", "worker", "global_step")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: float
    kind: str
    text: str
    warning: bool
    worker: str
    global_step: int
    def __init__(self, number: _Optional[int] = ..., time: _Optional[float] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., warning: _Optional[bool] = ..., worker: _Optional[str] = ..., global_step: _Optional[int] = ...) -> None: ...

class WorkerStaleness(_message.Message):
    __slots__ = ("worker", "incarnation", "pushes", "sums")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: int
    pushes: _containers.RepeatedScalarFieldContainer[int]
    sums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., pushes: _Optional[_Iterable[int]] = ..., sums: _Optional[_Iterable[int]] = ...) -> None: ...

class StalenessMatrix(_message.Message):
    __slots__ = ("variables", "workers")
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    variables: _containers.RepeatedScalarFieldContainer[str]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStaleness]
    def __init__(self, variables: _Optional[_Iterable[str]] = ..., workers: _Optional[_Iterable[_Union[WorkerStaleness, _Mapping]]] = ...) -> None: ...

class StatusDetail(_message.Message):
    __slots__ = ("events", "stalenesses", "matrix")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STALENESSES_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EventReport]
    stalenesses: _containers.RepeatedCompositeFieldContainer[StalenessCount]
    matrix: StalenessMatrix
    def __init__(self, events: _Optional[_Iterable[_Union[EventReport, _Mapping]]] = ..., stalenesses: _Optional[_Iterable[_Union[StalenessCount, _Mapping]]] = ..., matrix: _Optional[_Union[StalenessMatrix, _Mapping]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("shard", "shards", "global_step", "repeated", "variables", "workers", "epochs", "dropped", "nbytes", "consistency", "handling", "traffic", "staleness", "changes", "half_pushes", "last_pushes", "storage", "queues", "jobs", "stopped", "exposure", "totals", "held", "clipped", "detail", "minimizations")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    HANDLING_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    HALF_PUSHES_FIELD_NUMBER: _ClassVar[int]
    LAST_PUSHES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    EXPOSURE_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MINIMIZATIONS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    global_step: int
    repeated: int
    variables: _containers.RepeatedCompositeFieldContainer[VariableStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    epochs: _containers.RepeatedCompositeFieldContainer[EpochReport]
    dropped: int
    nbytes: int
    consistency: str
    handling: str
    traffic: Traffic
    staleness: Staleness
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    half_pushes: int
    last_pushes: _containers.RepeatedCompositeFieldContainer[LastPush]
    storage: StorageStatus
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobReport]
    stopped: str
    exposure: str
    totals: Totals
    held: int
    clipped: int
    detail: StatusDetail
    minimizations: _containers.RepeatedCompositeFieldContainer[MinimizationStatus]
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., global_step: _Optional[int] = ..., repeated: _Optional[int] = ..., variables: _Optional[_Iterable[_Union[VariableStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., epochs: _Optional[_Iterable[_Union[EpochReport, _Mapping]]] = ..., dropped: _Optional[int] = ..., nbytes: _Optional[int] = ..., consistency: _Optional[str] = ..., handling: _Optional[str] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ..., staleness: _Optional[_Union[Staleness, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., half_pushes: _Optional[int] = ..., last_pushes: _Optional[_Iterable[_Union[LastPush, _Mapping]]] = ..., storage: _Optional[_Union[StorageStatus, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobReport, _Mapping]]] = ..., stopped: _Optional[str] = ..., exposure: _Optional[str] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., held: _Optional[int] = ..., clipped: _Optional[int] = ..., detail: _Optional[_Union[StatusDetail, _Mapping]] = ..., minimizations: _Optional[_Iterable[_Union[MinimizationStatus, _Mapping]]] = ...) -> None: ...

class JobReport(_message.Message):
    __slots__ = ("job", "state", "global_step", "workers", "epochs", "cost")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    job: Job
    state: str
    global_step: int
    workers: int
    epochs: int
    cost: float
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., state: _Optional[str] = ..., global_step: _Optional[int] = ..., workers: _Optional[int] = ..., epochs: _Optional[int] = ..., cost: _Optional[float] = ...) -> None: ...

class BarrierRequest(_message.Message):
    __slots__ = ("sender", "number")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    number: int
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class BarrierReply(_message.Message):
    __slots__ = ("global_step",)
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    def __init__(self, global_step: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("sender", "reason")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sender: Sender
    reason: str
    def __init__(self, sender: _Optional[_Union[Sender, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("number", "force")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    force: bool
    def __init__(self, number: _Optional[int] = ..., force: _Optional[bool] = ...) -> None: ...

class ResetReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class InterveneRequest(_message.Message):
    __slots__ = ("by", "reason", "stop", "quarantine", "release", "scale_learning_rate")
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SCALE_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    by: str
    reason: str
    stop: bool
    quarantine: _containers.RepeatedScalarFieldContainer[str]
    release: _containers.RepeatedScalarFieldContainer[str]
    scale_learning_rate: float
    def __init__(self, by: _Optional[str] = ..., reason: _Optional[str] = ..., stop: _Optional[bool] = ..., quarantine: _Optional[_Iterable[str]] = ..., release: _Optional[_Iterable[str]] = ..., scale_learning_rate: _Optional[float] = ...) -> None: ...

class InterveneReply(_message.Message):
    __slots__ = ("global_step", "quarantined")
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, global_step: _Optional[int] = ..., quarantined: _Optional[_Iterable[str]] = ...) -> None: ...
