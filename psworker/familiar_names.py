"""Familiar names: those of PyTorch, TensorFlow, Keras, numpy and scikit-learn for what is here by another, or absent.

Errors name ours: of a public module (`missing`), of an object (`hint_attributes`), of an argument (`hint_keywords`).
Nothing here is called when a name exists. Imports the standard library only, and loads nothing before an error.

A hint is code in backquotes, or a sentence that contains some; or it names the page that says why there is none. Each
key has one or several names, with spaces between them.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, getattr_static, signature
from opcode import opmap
from typing import Any, NoReturn, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Of models, losses and tensors of PyTorch where ours are taken.
TORCH = "a program of PyTorch trains them by `psworker.torch` (docs/pytorch.md)"

_NO_DEVICES = "there are no devices (docs/choosing.md#gpu)"
_CLUSTER = "workers are started by `psworker local --workers 4 train.py`, and each opens a `ps.session()`"
_PYTORCH = f"{_CLUSTER}; a program of PyTorch keeps its model (docs/pytorch.md)"
_CROSS_ENTROPY = "`ops.softmax_cross_entropy(logits, labels)`"
_BINARY = "`ops.mean(ops.sigmoid_cross_entropy(logits, labels))`, of logits"
_TRAINER = "of `trainer = ps.Trainer(model, loss, optimizer)`"
_FIT = f"`trainer.fit(data, epochs)` {_TRAINER}, or a loop over `session.batches(data, batch_size, epochs)`"
_GENERATOR = "an array of `np.random.default_rng(seed)`, or `ps.Tensor(array, requires_grad=True)`"
_FRAME = "`ps.Dataset({'x': x, 'y': y})`, arrays by name, or `ps.Dataset(frame)`, a DataFrame of pandas"
_SPLIT = "`train, test = data.split(0.8)`, of a `ps.Dataset`"
_NUMPY = "an array of numpy is an argument as it is; `ps.Tensor(array, requires_grad=True)` for its gradient"


def _by_name(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for names, hint in rows.items() for name in names.split()}


#: Of any public module: who looks for `nn.cross_entropy` or `ps.Linear` is helped as well.
NAMES = _by_name(
    {
        # layers
        "Linear LazyLinear": "`nn.Dense(inputs, units)`",
        "Conv1d": "`nn.Conv1D(channels, filters, kernel_size)`, of (batch, length, channels)",
        "Conv2d": "`nn.Conv2D(channels, filters, kernel_size)`, of (batch, height, width, channels)",
        "ConvTranspose2d": "`nn.Conv2DTranspose(channels, filters, kernel_size)`, of (batch, height, width, channels)",
        "SeparableConv2D": "`nn.Sequential(nn.DepthwiseConv2D(channels, 3), nn.Conv2D(channels, filters, 1))`",
        "MaxPooling1D": "`nn.MaxPool1D(pool_size)`",
        "MaxPooling2D": "`nn.MaxPool2D(pool_size)`",
        "AveragePooling1D": "`nn.AvgPool1D(pool_size)`",
        "AveragePooling2D": "`nn.AvgPool2D(pool_size)`",
        "AdaptiveAvgPool2d GlobalAveragePooling2D GlobalAvgPool2D": "`ops.mean(x, axis=(1, 2))`",
        "BatchNorm1d BatchNorm2d BatchNormalization SyncBatchNorm": "`nn.BatchNorm(features)`",
        "LayerNormalization": "`nn.LayerNorm(features)`",
        "GroupNorm InstanceNorm2d RMSNorm": "absent; `nn.LayerNorm(features)` is the nearest",
        "Dropout1d Dropout2d SpatialDropout2D": "absent; `nn.Dropout(rate)` is the nearest",
        "Module Model": "`nn.Layer`, with `__call__` (docs/models.md#composition-of-layers)",
        "ModuleList ModuleDict ParameterList": "a list or dict of layers as an attribute of an `nn.Layer`",
        "Identity Lambda Activation": "a function, such as `ops.relu`, is an argument of `nn.Sequential`",
        "Input InputLayer": "no layer is needed; a layer is given its number of inputs, as `nn.Dense(inputs, units)`",
        "RNN SimpleRNN RNNCell": "absent; `nn.GRU(inputs, units)` is the nearest",
        "LSTMCell": "`nn.LSTM(inputs, units)`, of all steps",
        "GRUCell": "`nn.GRU(inputs, units)`, of all steps",
        "Transformer TransformerEncoder TransformerEncoderLayer Attention": "composed of "
        "`nn.MultiHeadAttention(inputs, num_heads, key_dim)` (docs/models.md#sequences)",
        "EmbeddingBag": "`nn.Embedding(rows, width)` and `ops.segment_sum(x, segment_ids)`",
        "ZeroPadding2D ZeroPad2d": "`ops.pad(x, paddings)`",
        "Upsample UpSampling2D interpolate": "`ops.repeat(ops.repeat(x, 2, axis=1), 2, axis=2)`",
        "layers modules models": "layers are in `nn`, such as `nn.Dense(inputs, units)`",
        "training": "`ps.Trainer(model, loss, optimizer)`",
        # losses
        "CrossEntropyLoss NLLLoss cross_entropy nll_loss": _CROSS_ENTROPY,
        "CategoricalCrossentropy categorical_crossentropy": f"{_CROSS_ENTROPY}, of logits",
        "SparseCategoricalCrossentropy sparse_categorical_crossentropy": f"{_CROSS_ENTROPY}, of logits",
        "softmax_cross_entropy_with_logits sparse_softmax_cross_entropy_with_logits": f"{_CROSS_ENTROPY}, their mean",
        "softmax_cross_entropy_with_logits_v2": f"{_CROSS_ENTROPY}, their mean",
        "BCEWithLogitsLoss BCELoss binary_cross_entropy_with_logits": _BINARY,
        "binary_cross_entropy BinaryCrossentropy binary_crossentropy": _BINARY,
        "sigmoid_cross_entropy_with_logits": "`ops.sigmoid_cross_entropy(logits, labels)`",
        "MSELoss mse_loss mse": "`ops.mean_squared_error(predictions, targets)`",
        "L1Loss l1_loss mae": "`ops.mean(ops.abs(predictions - targets))`",
        "SmoothL1Loss smooth_l1_loss": "`ops.huber_loss(predictions, targets)`",
        "l2_loss": "`0.5 * ops.sum(ops.square(x))`",
        "hinge": "`ops.hinge_loss(logits, labels)`",
        "losses loss criterion": f"losses are in `ops`, such as {_CROSS_ENTROPY}",
        "huber Huber HuberLoss": "`ops.huber_loss(predictions, targets)`",
        # metrics; those of `ps.metrics` alone have its name in front
        "metrics.mse metrics.MSE MeanSquaredError": "`ps.metrics.mean_squared_error(predictions, targets)`",
        "metrics.mae metrics.MAE MeanAbsoluteError": "`ps.metrics.mean_absolute_error(predictions, targets)`",
        "rmse RMSE RootMeanSquaredError": "`ps.metrics.root_mean_squared_error(predictions, targets)`",
        "r2_score R2Score": "`ps.metrics.r2(predictions, targets)`",
        "acc accuracy_score SparseCategoricalAccuracy CategoricalAccuracy BinaryAccuracy": "`ps.metrics.accuracy("
        "predictions, labels)`",
        "f1_score F1Score": "`ps.metrics.f1(predictions, labels)`",
        "roc_auc_score AUROC": "`ps.metrics.auc(scores, labels)`",
        # ops
        "functional F math activations linalg": "functions are in `ops`, such as `ops.relu(x)` and `ops.norm(x)`",
        "cat concat": "`ops.concatenate(tensors, axis)`",
        "unsqueeze": "`ops.expand_dims(x, axis)`",
        "view": "`ops.reshape(x, shape)`",
        "permute permute_dims": "`ops.transpose(x, axes)`",
        "mm bmm": "`ops.matmul(a, b)`",
        "mul": "`ops.multiply(a, b)`",
        "sub": "`ops.subtract(a, b)`",
        "div true_divide": "`ops.divide(a, b)`",
        "neg": "`ops.negative(x)`",
        "pow": "`ops.power(a, b)`",
        "remainder": "`ops.mod(a, b)`",
        "absolute fabs": "`ops.abs(x)`",
        "reduce_sum": "`ops.sum(x, axis)`",
        "reduce_mean": "`ops.mean(x, axis)`",
        "reduce_max amax": "`ops.max(x, axis)`",
        "reduce_min amin": "`ops.min(x, axis)`",
        "reduce_prod": "`ops.prod(x, axis)`",
        "reduce_any": "`ops.any(x, axis)`",
        "reduce_all": "`ops.all(x, axis)`",
        "reduce_logsumexp": "`ops.logsumexp(x, axis)`",
        "clamp": "`ops.clip(x, low, high)`",
        "relu6": "`ops.clip(x, 0, 6)`",
        "swish": "`ops.silu(x)`",
        "expit": "`ops.sigmoid(x)`",
        "asin": "`ops.arcsin(x)`",
        "acos": "`ops.arccos(x)`",
        "atan": "`ops.arctan(x)`",
        "atan2": "`ops.arctan2(a, b)`",
        "identity": "`ops.eye(n)`",
        "inverse matrix_inverse": "`ops.inv(x)`",
        "percentile": "`ops.quantile(x, q)`, q from 0 to 1",
        "expand broadcast": "`ops.broadcast_to(x, shape)`",
        "chunk": "`ops.split(x, sections, axis)`",
        "unstack unbind": "`list(x)`",
        "index_select": "`ops.take(x, ids, axis)`",
        "boolean_mask masked_select gather_nd": "`x[mask]`, `x[ids]`",
        "masked_fill": "`ops.where(mask, value, x)`",
        "scatter_add scatter_nd index_add unsorted_segment_sum": "`ops.segment_sum(x, segment_ids)`",
        "embedding_lookup": "`ops.embedding(table, ids)`",
        "max_pool": "`ops.max_pool2d(x)`",
        "avg_pool": "`ops.avg_pool2d(x)`",
        "batch_normalization": "`ops.batch_norm`, of the layer `nn.BatchNorm(features)`",
        "tensor as_tensor convert_to_tensor from_numpy constant array asarray": _NUMPY,
        "rand randn normal uniform random": _GENERATOR,
        "detach": "`ps.stop_gradient(x)`",
        # optimizers
        "optim optimizers": "optimizers are in `ps`, such as `ps.Adam()`, `ps.GradientDescent(learning_rate)`",
        "SGD": "`ps.GradientDescent(learning_rate)`, or `ps.Momentum(learning_rate, momentum=0.9)`",
        "GradientDescentOptimizer": "`ps.GradientDescent(learning_rate)`",
        "MomentumOptimizer": "`ps.Momentum(learning_rate)`",
        "AdamOptimizer LazyAdamOptimizer": "`ps.Adam()`",
        "AdagradOptimizer": "`ps.Adagrad(learning_rate)`",
        "RMSPropOptimizer": "`ps.RMSProp()`",
        "FtrlOptimizer": "`ps.Ftrl(learning_rate)`",
        "Adadelta Adamax AdaMax NAdam Nadam RAdam Rprop ASGD Lion Adafactor": "`ps.Adam()` may do, or a "
        "`ps.CustomOptimizer` (docs/models.md#a-custom-optimizer)",
        "SyncReplicasOptimizer": "servers take means of gradients: `psworker local --consistency sync:4 train.py`",
        "clip_grad_norm_ clip_grad_norm": "`ps.clip_by_global_norm(pairs, 1.0)`",
        "clip_grad_value_": "`ps.clip_by_value(pairs, -1.0, 1.0)`",
        "utils": "`ps.clip_by_global_norm(pairs, 1.0)`, `session.batches(data, batch_size)`",
        # schedules and initial values
        "lr_scheduler": "`ps.Adam(ps.schedules.CosineDecay(0.001, decay_steps=10_000))`, evaluated on the server",
        "CosineAnnealingLR cosine_decay": "`ps.schedules.CosineDecay(initial, decay_steps)`, as a learning rate",
        "CosineAnnealingWarmRestarts CosineDecayRestarts": "absent; `ps.schedules.CosineDecay(initial, decay_steps)` "
        "is the nearest",
        "StepLR StepDecay": "`ps.schedules.ExponentialDecay(initial, decay_steps, decay_rate, staircase=True)`, as a "
        "learning rate",
        "MultiStepLR PiecewiseConstantDecay piecewise_constant": "`ps.schedules.PiecewiseConstant(boundaries, "
        "values)`, as a learning rate",
        "PolynomialLR InverseTimeDecay": "`ps.schedules.PolynomialDecay(initial, decay_steps)`, as a learning rate",
        "ConstantLR": "a number is a constant learning rate: `ps.Adam(0.001)`",
        "LearningRateSchedule LRScheduler": "`ps.schedules.Schedule`, the base of those that servers know",
        "ExponentialLR": "`ps.schedules.ExponentialDecay(initial, decay_steps, decay_rate)`, as a learning rate",
        "LinearLR OneCycleLR LambdaLR LinearWarmup": "`ps.schedules.WarmUp(steps, schedule)`, as a learning rate",
        "ReduceLROnPlateau LearningRateScheduler": "`session.set_hyperparameters(optimizer, learning_rate=0.01)`",
        "init": "initial values are in `ps.initializers`; a job begins with `ps.session()`",
        "xavier_uniform xavier_uniform_": "`ps.initializers.glorot_uniform()`",
        "xavier_normal xavier_normal_": "`ps.initializers.glorot_normal()`",
        "kaiming_uniform kaiming_uniform_": "`ps.initializers.he_uniform()`",
        "kaiming_normal kaiming_normal_": "`ps.initializers.he_normal()`",
        # variables and gradients
        "Parameter get_variable": '`ps.Variable(value, name="w")`',
        "placeholder": "a function of a batch, whose columns are `batch.x`, or of any array",
        "assign_sub": "`variable.assign_add(-delta)`",
        "name_scope": '`ps.variable_scope("layer")`',
        "enable_grad inference_mode set_grad_enabled": "gradients are recorded but within `with ps.no_grad():`",
        "grad GradientTape autograd": "`ps.gradients(loss, variables)`, or `ps.value_and_grad(function)`",
        "global_variables_initializer initialize_all_variables": "not needed: a `ps.Variable` has its value at once",
        "manual_seed set_seed seed": "`ps.set_random_seed(0)`",
        "float16 float32 float64 int32 int64 uint8 dtype": "dtypes are numpy's, such as `np.float32`",
        "device cuda is_available": _NO_DEVICES,
        "amp autocast GradScaler": "absent: docs/performance.md#mixed-precision",
        "jit compile function": "not needed: ops compute at once (docs/coming-from/index.md)",
        # data
        "DataLoader": "`session.batches(data, batch_size, epochs)`",
        "TensorDataset from_tensor_slices": '`ps.Dataset({"x": x, "y": y})`',
        "IterableDataset from_generator": "`session.batches(examples, batch_size)` takes any iterable of examples",
        "random_split train_test_split": _SPLIT,
        "MNIST": "`ps.datasets.mnist()`",
        "load_data": "`ps.datasets.mnist()`, or columns of arrays: `ps.Dataset(columns)`",
        "read_csv read_parquet from_csv from_pandas DataFrame": _FRAME,
        # jobs
        "keras": "layers are in `nn`, optimizers in `ps`: docs/coming-from/keras.md",
        "LogisticRegression LinearRegression Ridge SGDClassifier SGDRegressor MLPClassifier MLPRegressor": "a "
        "loss that is minimized: docs/coming-from/scikit-learn.md",
        "Pipeline make_pipeline StandardScaler OneHotEncoder": "functions of arrays: docs/coming-from/scikit-learn.md",
        "Graph get_default_graph reset_default_graph": "there is no graph; variables are forgotten by `ps.reset()`",
        "summary": "`session.summary`",
        "train": "`ps.Adam()`, `ps.session(checkpoint_dir=folder)`: docs/coming-from/tensorflow1.md",
        "MonitoredTrainingSession MonitoredSession InteractiveSession": "`ps.session(checkpoint_dir=folder)`",
        "ClusterSpec Server replica_device_setter": "servers are started by `psserver serve --shard 0/2`",
        "init_process_group distributed distribute DistributedDataParallel DataParallel": _PYTORCH,
        "ParameterServerStrategy MultiWorkerMirroredStrategy": _CLUSTER,
        "DistributedSampler": "`session.batches(data, batch_size)` shares the examples among the workers",
        "rank get_rank": "`session.number`",
        "world_size get_world_size": "`len(session.workers)`",
        "global_step get_global_step get_or_create_global_step": "`session.global_step`",
        "batches": "`session.batches(data, batch_size)`",
        "barrier": "`session.barrier()`",
        "evaluate": "`session.evaluate(function, data)`",
        "Saver Checkpoint": "`ps.session(checkpoint_dir=folder)`, `ps.save(path)`",
        "ModelCheckpoint BackupAndRestore": "`ps.callbacks.BestModel()`, `ps.session(checkpoint_dir=folder)`",
        "LambdaCallback History": "`ps.callbacks.Callback` (docs/trainer.md#callbacks)",
        "save_model": "`ps.save(path)`",
        "load_model load_state_dict restore": "`ps.load(path)`",
        "SummaryWriter FileWriter TensorBoard": "`ps.session(summary_dir=folder)`, `session.summary`",
    }
)

#: Of tensors, variables and tables.
TENSOR = _by_name(
    {
        "backward": "`optimizer.minimize(loss)`, or `ps.gradients(loss, variables)`",
        "grad": "gradients are returned, by `optimizer.compute_gradients(loss)` and `ps.gradients(loss, variables)`",
        "numpy data eval read_value": "`x.value`",
        "detach detach_": "`ps.stop_gradient(x)`",
        "requires_grad_ retain_grad": "`ps.Tensor(value, requires_grad=True)`",
        "cuda cpu device": f"{_NO_DEVICES}; the array is `x.value`",
        "to": f"{_NO_DEVICES}; of another dtype: `x.astype(dtype)`",
        "float double half long int bool type": "`x.astype(dtype)`",
        "view": "`x.reshape(shape)`",
        "permute t": "`x.transpose(axes)`",
        "unsqueeze": "`ops.expand_dims(x, axis)`",
        "expand": "`ops.broadcast_to(x, shape)`",
        "repeat": "`ops.tile(x, reps)`, or numpy's repeat: `ops.repeat(x, repeats, axis)`",
        "dim": "`x.ndim`",
        "numel": "`x.size`",
        "get_shape": "`x.shape`",
        "clone copy contiguous": "`x` itself, which ops never change; a copy of its array is `x.value.copy()`",
        "clamp": "`x.clip(low, high)`",
        "matmul mm bmm": "`x @ y`, or `ops.matmul(x, y)`",
        "pow": "`x ** y`, or `ops.power(x, y)`",
        "concat cat": "`ops.concatenate(tensors, axis)`",
        "add_ sub_ mul_ div_ zero_ fill_ copy_ clamp_ normal_ uniform_ set_": "no tensor is changed in place; a "
        "variable is by `variable.assign(value)` and `variable.assign_add(value)`",
        "assign_sub": "`variable.assign_add(-value)`",
        "register_hook": "gradients are transformed between `optimizer.compute_gradients(loss)` and "
        "`optimizer.apply_gradients(pairs)`",
    }
)

#: Of layers.
LAYER = _by_name(
    {
        "parameters named_parameters weights get_weights": "`layer.variables`, each with its `name` and `value`",
        "trainable_weights": "`layer.trainable_variables`",
        "set_weights": "`variable.assign(value)`, for each of `layer.variables`",
        "weight": "`layer.kernel`, of `nn.Embedding` its `table`",
        "forward call": "a layer is called: `layer(x)`",
        "train": "an argument of the call: `model(x, training=True)`",
        "eval": "an argument of the call: `model(x, training=False)`",
        "add append insert extend pop": "`nn.Sequential(*layers)`, of all of them at once",
        "modules named_modules children named_children": "`model.layers`, of an `nn.Sequential`; `layer.summary()`",
        "apply": "initial values are arguments, such as `nn.Dense(inputs, units, kernel_initializer=initializer)`",
        "build": "not needed: variables are made with the layer, by `nn.Dense(inputs, units)`",
        "train_on_batch": "`optimizer.minimize(loss)`",
        "requires_grad_": "`layer.trainable = False`",
        "zero_grad": "not needed: gradients are returned, by `optimizer.compute_gradients(loss)`",
        "state_dict save save_weights": "`ps.save(path)`, in a session `session.save(path)`",
        "load load_state_dict load_weights": "`ps.load(path)`",
        "to cuda cpu device": _NO_DEVICES,
        "half float double": "a layer computes in the dtype of its variables: docs/models.md#dtypes",
        "fit compile": _FIT,
        "predict predict_proba": f"`layer(x).value`, or `trainer.predict(x)` {_TRAINER}",
        "evaluate score": f"`session.evaluate(function, data)`, or `trainer.evaluate(data)` {_TRAINER}",
        "count_params": "`layer.summary()`, with the number of parameters",
    }
)

#: Of optimizers.
OPTIMIZER = _by_name(
    {
        "step apply": "`optimizer.apply_gradients(pairs)`, or all of a step: `optimizer.minimize(loss)`",
        "zero_grad": "not needed: gradients are returned, by `optimizer.compute_gradients(loss)`",
        "lr": "`optimizer.learning_rate`",
        "param_groups add_param_group": "`ps.ParameterGroups(groups)`; "
        "`session.set_hyperparameters(optimizer, learning_rate=0.01)`",
        "state_dict": "the servers keep it: `session.slot(variable, name)`, `ps.session(checkpoint_dir=folder)`",
        "load_state_dict": "the servers keep it: `ps.session(checkpoint_dir=folder)`",
    }
)

#: Of sessions.
SESSION = _by_name(
    {
        "run": "ops compute at once: `x.value` is the value of a tensor, `optimizer.minimize(loss)` a step",
        "should_stop": "`session.stopped`; loops over `session.batches(data, batch_size)` end by themselves",
        "fit train": _FIT,
        "predict": f"`model(x).value`, or `trainer.predict(x)` {_TRAINER}",
        "load restore": "`ps.load(path)`",
        "rank": "`session.number`",
        "world_size num_workers": "`len(session.workers)`",
        "stop": "`session.stop_all(reason)`",
    }
)

#: Of datasets and batches.
DATASET = _by_name(
    {
        "shuffle repeat prefetch cache": "`session.batches(data, batch_size, epochs)`, in a new order in each epoch",
        "batch": "`session.batches(data, batch_size)`",
        "head tail": "`data[:5]`",
        "sample": "`data.take(rows)`",
        "describe info": "numpy's functions of a column: `np.mean(data.x, axis=0)`",
        "to_pandas to_dict to_numpy values": "`{name: data[name] for name in data.columns}`",
        "train_test_split random_split": "`train, test = data.split(0.8)`",
        "drop dropna filter select rename": "`ps.Dataset(columns)`, of those that are meant",
        "from_csv from_pandas from_dict from_arrays from_numpy from_tensor_slices": _FRAME,
        "map": "a function of the batch in the loop, or `ps.FunctionDataset(read, size)`",
        "shape": "`len(data)` rows, of `data.columns`",
        "keys": "`data.columns`",
        "iloc loc": "`data.take(rows)`",
    }
)

#: Of trainers.
TRAINER = _by_name(
    {
        "save save_weights": "`ps.save(path)`, in a session `session.save(path)`",
        "load load_weights restore": "`ps.load(path)`",
        "summary": "`trainer.model.summary()`",
        "parameters variables": "`trainer.model.variables`",
        "score": "`trainer.evaluate(data)`",
        "compile": "`ps.Trainer(model, loss, optimizer, metrics)`",
        "train": "`trainer.fit(data, epochs)`",
        "train_on_batch step": "`optimizer.minimize(loss)`",
        "history": "`history = trainer.fit(data, epochs)`, a record of each epoch",
        "predict_proba": "`ops.softmax(trainer.predict(x))`, of logits",
        "predict_classes": "`ops.argmax(trainer.predict(x), axis=-1)`",
    }
)

#: Of what `Trainer.fit` returns.
HISTORY = _by_name({"history epoch params": "the list itself, of what `trainer.fit(data, epochs)` says of each epoch"})

#: Arguments: ours by familiar names. Of several, those that a function has.
KEYWORDS = {
    name: tuple(ours.split())
    for names, ours in {
        # optimizers
        "lr eta eta0": "learning_rate",
        "step_size": "learning_rate decay_steps",
        "beta": "momentum beta1 beta2",
        "betas": "beta1 beta2",
        "beta_1": "beta1",
        "beta_2": "beta2",
        "eps": "epsilon",
        "rho alpha": "decay",
        "use_nesterov": "nesterov",
        "initial_accumulator_value": "initial_accumulator",
        "l1_regularization_strength": "l1",
        "l2_regularization_strength": "l2",
        "lr_power": "learning_rate_power",
        # layers
        "in_features in_dim n_in input_size input_dim input_shape": "inputs rows channels",
        "out_features out_dim n_out output_dim hidden_size num_units num_outputs": "units width filters",
        "in_channels input_channels": "channels",
        "out_channels output_channels num_filters": "filters",
        "ksize filter_size pool kernel": "kernel_size pool_size",
        "kernel_size": "pool_size",
        "stride": "strides",
        "dilation dilation_rate": "dilations",
        "use_bias": "bias",
        "num_features normalized_shape": "features",
        "p drop_prob prob": "rate",
        "num_embeddings vocab_size": "rows",
        "embedding_dim": "width",
        "embed_dim d_model": "inputs",
        "heads nhead n_heads": "num_heads",
        "head_dim": "key_dim",
        "weight_initializer kernel_init": "kernel_initializer",
        "bias_init": "bias_initializer",
        "embeddings_initializer": "initializer",
        # ops
        "dim dims": "axis axes",
        "keepdim keep_dims": "keepdims",
        "num_classes n_classes": "depth",
        "other": "b",
        "input": "x a logits predictions",
        "target y_true": "labels targets",
        "y_pred": "logits predictions",
        "min a_min clip_value_min": "low",
        "max a_max clip_value_max": "high",
        # schedules
        "T_max total_steps total_iters": "decay_steps",
        "initial_learning_rate base_lr max_lr": "initial",
        "gamma": "decay_rate",
        "milestones": "boundaries",
        "warmup_steps num_warmup_steps": "steps",
        "end_learning_rate": "end",
        # trainers and datasets
        "validation_data": "validation",
        "criterion loss_fn": "loss",
        "optim": "optimizer",
        "max_epochs n_epochs num_epochs nb_epoch": "epochs",
        "random_state": "seed",
        "train_size frac": "fraction",
        # batch optimization
        "max_iter maxiter": "iterations",
        "max_eval maxfun": "evaluations",
        "tol gtol tolerance_grad": "gradient",
        "history_size m": "memory",
        # sessions
        "master target address addresses hosts": "servers",
        "worker worker_name": "name",
        "logdir log_dir": "summary_dir",
        "checkpoint checkpoints ckpt_dir model_dir": "checkpoint_dir",
        "save_checkpoint_secs save_checkpoint_steps save_every": "checkpoint_every",
        "max_to_keep": "keep",
        # variables
        "initial_value data": "value",
        "requires_grad": "trainable",
    }.items()
    for name in names.split()
}

#: Arguments that nothing has, or not the function that is called.
ABSENT_KEYWORDS = _by_name(
    {
        "params parameters": "variables are found, or given: `optimizer.minimize(loss, variables)`",
        "momentum": "`ps.Momentum(learning_rate, momentum=0.9)`; `nn.BatchNorm(features, decay=0.99)`, which is 1 - "
        "PyTorch's momentum",
        "nesterov": "`ps.Momentum(learning_rate, nesterov=True)`",
        "weight_decay": "`ps.AdamW(weight_decay=0.01)`, or `ps.add_decayed_weights(pairs, rate)`",
        "clipnorm clipvalue global_clipnorm": "`optimizer.with_transform(transform)`, such as a "
        "function that returns `ps.clip_by_global_norm(pairs, 1.0)`",
        "amsgrad": "`ps.Adam(amsgrad=True)`",
        "dtype": "the dtype is that of the value, or of its initializer: docs/models.md#dtypes",
        "device": _NO_DEVICES,
        "bidirectional num_layers go_backwards": "several layers, such as `nn.LSTM(inputs, units, "
        "return_sequences=True)` (docs/models.md#sequences)",
        "batch_first": "x is always (batch, time, features): `ops.swapaxes(x, 0, 1)` of (time, batch, features)",
        "dropout recurrent_dropout": "a layer of its own: `nn.Dropout(rate)`",
        "keep_prob": "`nn.Dropout(rate)`, with the share that is left out",
        "padding_idx mask_zero": "docs/data.md#without-padding",
        "validation_split test_size": "`train, validation = data.split(0.8)`, of a `ps.Dataset`",
        "verbose": "`trainer.fit(data, callbacks=[ps.callbacks.EpochPrinter()])`",
        "x y X": "the data are columns by name: `ps.Dataset({'x': x, 'y': y})`",
        "lr": "of the optimizer: `ps.Adam(0.001)`",
        "restore_best_weights": "`ps.callbacks.BestModel(restore=True)`, another callback",
        "mode": "`ps.callbacks.EarlyStopping(monitor, maximize=True)` for mode='max'",
        "filepath save_best_only": "the folder of the best model is that of `ps.session(checkpoint_dir=folder)`",
        "eta_min": "`ps.schedules.CosineDecay(initial, decay_steps, alpha=0.1)`, the last rate as a share of the first",
        "last_epoch": "servers count steps: `session.global_step`",
        "ord p": "the norm is the Euclidean one, and that of p=1 is `ops.sum(ops.abs(x))`",
        "reduction": "losses are means over the batch: `ops.softmax_cross_entropy(logits, labels)`",
        "inplace": "no tensor is changed in place: `ops.relu(x)` is another",
        "drop_last drop_remainder": "the last batch of an epoch of `session.batches(data, batch_size)` may be smaller",
        "batch_size epochs shuffle": "`session.batches(data, batch_size, epochs)`",
        "consistency staleness sync": "an option of the servers: `psserver serve --consistency sync:4`",
        "workers num_workers world_size rank": _CLUSTER,
        "is_chief": "the servers choose: `session.is_chief`",
        "local": "a session without servers has them in its process: `ps.session()`",
    }
)

#: Public modules by the names that programs have for them; "ps" is the package itself.
MODULES = ("callbacks", "data", "datasets", "errors", "initializers", "metrics", "nn", "ops", "schedules")


def described(hint: str) -> str:
    """A hint as the end of a message: ": use `ps.Adam()`"."""
    return f": {'use ' if hint.startswith('`') else ''}{hint}"


def missing(module: str, name: str) -> AttributeError | ImportError:
    """The error of a public module, by its name in `MODULES` or "ps", that has no `name`: for its `__getattr__`.

    ImportError in `from psworker import NAME`, since Python would not show the message of an AttributeError.
    """
    path = "psworker" if module == "ps" else f"psworker.{module}"
    caller = sys._getframe(2)  # of the module's `__getattr__`
    if name.startswith("_") or caller.f_code.co_name == "_handle_fromlist":  # which looks for a submodule
        return AttributeError(f"module {path!r} has no attribute {name!r}")
    hint = ending(module, name)
    if caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {path!r}{hint}", name=path)
    return AttributeError(f"module {path!r} has no attribute {name!r}{hint}", name=name)


def check_module(path: str) -> None:
    """Raises ModuleNotFoundError with a hint, if there is one, for `import psworker.NAME` or `psworker.nn.NAME`."""
    package, _, name = path.rpartition(".")
    module = package.removeprefix("psworker").removeprefix(".") or "ps"
    hint = ending(module, name) if module in {"ps", *MODULES} else ""
    if hint:
        raise ModuleNotFoundError(f"No module named {path!r}{hint}", name=path)


def ending(module: str, name: str) -> str:
    """The end of the message for `name`, looked for in a public module: a hint, or public names that are alike."""
    hint = NAMES.get(f"{module}.{name}") or NAMES.get(name)
    if hint:
        return described(hint)
    package = sys.modules["psworker"]
    public = {one: dir(package if one == "ps" else getattr(package, one)) for one in (module, "ps", *MODULES)}
    alike = [f"{home}.{one}" for home, names in public.items() for one in names if _folded(one) == _folded(name)]
    for familiar, hint in NAMES.items():
        if not alike and _folded(familiar) == _folded(name):
            return described(hint)
    if not alike:
        from difflib import get_close_matches

        alike = [f"{module}.{one}" for one in get_close_matches(name, public[module], n=2, cutoff=0.75)]
    return f"; did you mean {' or '.join(alike)}?" if alike else ""


def _folded(name: str) -> str:
    """The same for names that differ in case and underscores only."""
    return name.replace("_", "").lower()


class Absent:
    """An attribute that a class does not have: AttributeError with the hint.

    Unlike `__getattr__` it costs the attributes that exist nothing. A subclass or an object may have its own.
    """

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no attribute {self.name!r}{described(self.hint)}", name=self.name)

    def __repr__(self) -> str:
        return f"absent{described(self.hint)}"


def hint_attributes(kind: type, hints: Mapping[str, str]) -> None:
    """Gives a class, and those that inherit from it, errors with `hints`; `dir` of an object does not list them."""
    for name, hint in hints.items():
        if not hasattr(kind, name):
            setattr(kind, name, Absent(name, hint))
    names: Callable[[object], Iterable[str]] = kind.__dir__  # type: ignore[assignment]

    def present(self: object) -> list[str]:
        return [name for name in names(self) if not isinstance(getattr_static(self, name, None), Absent)]

    kind.__dir__ = present  # type: ignore[method-assign, assignment]


def kind_of(given: object) -> str:
    """The name of an object's type, for messages: "torch.Tensor: a program of PyTorch ..." of another library."""
    kind = type(given)
    library = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if library in ("builtins", "psworker") else f"{library}.{kind.__qualname__}"
    return f"{name}{described(TORCH)}" if is_of_torch(given) else name


def is_of_torch(given: object) -> bool:
    """True of PyTorch's objects and those of classes that are derived from its own."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(given).__mro__)


def shown(given: object, module: str) -> str:
    """An argument that is refused, for messages, with a hint: a text is looked for among the names of a module."""
    if is_of_torch(given):
        return kind_of(given)
    return f"{given!r:.80}{ending(module, given) if isinstance(given, str) else ''}"


def hint_keywords(function: Callable[Arguments, Result], name: str = "") -> Callable[Arguments, Result]:
    """The function, with a TypeError for arguments that it does not take that names those it does.

    `name` is for messages.
    """

    @wraps(function)
    def hinted(*args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        try:
            return function(*args, **keywords)
        except TypeError:
            message = wrong_arguments(name or function.__name__, function, args, keywords)
            if message:
                raise TypeError(message) from None
            raise

    return hinted


def hint_arguments(kinds: Iterable[type]) -> None:
    """Gives classes that take arguments `hint_keywords`."""
    for kind in [one for one in kinds if one.__init__ is not object.__init__]:  # type: ignore[misc]
        plain = signature(kind)  # for help: of a spec without what checks its fields
        initialize: Any = hint_keywords(kind.__init__, kind.__name__)  # type: ignore[misc]
        own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        initialize.__signature__ = plain.replace(parameters=[own, *plain.parameters.values()])
        kind.__init__ = initialize  # type: ignore[misc]


def wrong_arguments(
    name: str, function: Callable[..., object], args: Iterable[object], keywords: Mapping[str, object]
) -> str:
    """The message for arguments that the function does not take; "" if it takes all."""
    parameters = signature(function).parameters.values()
    known = [one.name for one in parameters if one.name != "self"]
    unknown = [one for one in keywords if one not in known]
    if unknown:
        ours = {one: [here for here in KEYWORDS.get(one, ()) if here in known] for one in unknown}
        hints = [f"{one} is {' and '.join(names)} here" for one, names in ours.items() if names]
        absent = [one for one, names in ours.items() if not names and one in ABSENT_KEYWORDS]
        hints += [f"{one}{described(ABSENT_KEYWORDS[one])}" for one in absent]
        wrong = f"{name} has no argument {' and '.join(map(repr, unknown))}"
    else:
        try:
            signature(function).bind(*args, **keywords)
        except TypeError as error:
            wrong, hints = f"{name}: {error}", []
            if str(error).startswith("missing") and known[0] in _SIZES:
                hints = [f"the size of its input comes first, {name}({', '.join(known[:2])})"]
            named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
            if str(error).startswith("too many") and named:
                hints = [f"by name are given {', '.join(named)}"]
        else:
            return ""
    return "; ".join([wrong, *hints, f"its arguments are {', '.join(known)}"])


#: First arguments of layers.
_SIZES = ("inputs", "channels")
