// The calls of lanes whose model is a block or a stack (test/golden/columns/README.md section 3).
#include "samba/core/files.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/column_lane.h"
#include "samba/verify/schema.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

// The op of a call that cuts the batch into `pieces` equal runs of rows.
template <class Run>
void for_each_piece(const Array& x, Index pieces, Run&& run) {
  const Index rows = x.shape()[0] / pieces;
  for (Index piece = 0; piece < pieces; ++piece) run(piece * rows, (piece + 1) * rows);
}

}  // namespace

LaneBlock::LaneBlock(Lane& lane) : lane_(lane) {
  block_ = std::make_unique<BlockUnderTest>(lane.run().executor, lane.model().at("block"), lane.model().at("options"),
                                            lane.run().test.tensors.weights());
  block_->module().set_stage_recorder(lane.run().trace);
  lane.run().check.text("weight_format", block_->module().weight_format(), lane.model().at("weight_format"));
}

void LaneBlock::call(const json& call) {
  const std::string op = call.at("op");
  if (op == "forward" || op == "steps") {
    Array y = block_->advance(call, lane_.cut(call, "x"));
    lane_.check_same_as(call, y);
    lane_.add_if_named(call, "y", std::move(y));
  } else if (op == "backward") {
    backward(call);
  } else if (op == "backward_pieces") {
    backward_pieces(call);
  } else if (op == "tape") {
    tape(call);
  } else if (op == "pair") {
    pair(call);
  } else {
    block_->manage(call, [this](const json& name) { return copy_of(lane_.value(name)); });
  }
  check_expected(call);
}

void LaneBlock::check_expected(const json& call) {
  if (!call.contains("expect")) return;
  const json& expected = call["expect"].at("state");
  const ModuleState& state = block_->state(call);
  const ArrayMap pieces = state.pieces();
  for (const auto& [piece, result] : member_or_empty(expected, "pieces").items()) {
    lane_.add(result, copy_of(pieces.at(piece)));
  }
  check_counters(lane_.run().check, call.at("op").get<std::string>() + ": state", expected, state.counters());
}

void LaneBlock::backward(const json& call) {
  NamedGradients gradients = block_->module().backward(lane_.cut(call, "x"), lane_.cut(call, "grad_output"));
  if (call.contains("same_as")) {
    const json rows = {{"rows", call.at("rows")}};
    for (const auto& [name, result] : call["same_as"].items()) {
      lane_.run().check.array("backward of rows " + call["rows"].dump() + " " + name, gradients.arrays.at(name),
                              Lane::cut(rows, lane_.result(result)));
    }
    return;
  }
  for (const json& name : call.at("grads")) {
    lane_.add("grad." + name.get<std::string>(), std::move(gradients.arrays.at(name.get<std::string>())));
  }
}

void LaneBlock::backward_pieces(const json& call) {
  const Array& x = lane_.value(call.at("x"));
  const Array& grad_output = lane_.value(call.at("grad_output"));
  PieceSum sum(lane_.run().executor);
  for_each_piece(x, call.at("pieces").get<Index>(), [&](Index first, Index end) {
    const NamedGradients gradients =
        block_->module().backward(slice(x, 0, first, end), slice(grad_output, 0, first, end));
    for (const auto& [name, array] : gradients.arrays) sum.add(name, array);
  });
  sum.check(lane_, call.at("same_as"), "backward in " + call["pieces"].dump() + " pieces");
}

void LaneBlock::tape(const json& call) {
  const Array x = lane_.cut(call, "x");
  for (const json& variant : call.at("variants")) {
    check_keys(variant, "activation_budget_bytes? minimum_replay_ops_per_byte?", "variants");
    const BlockModule::Taped taped = block_->module().forward_with_tape(
        x, variant.value("activation_budget_bytes", BlockModule::kDefaultActivationBudget),
        variant.value("minimum_replay_ops_per_byte", std::int64_t{0}));
    lane_.run().check.array("tape " + variant.dump(), taped.y, lane_.result(call.at("y")));
    const NamedGradients gradients = block_->module().backward_from_tape(*taped.tape, lane_.cut(call, "grad_output"));
    for (const json& name : call.at("grads")) {
      lane_.run().check.array("tape " + variant.dump() + " " + name.get<std::string>(),
                              gradients.arrays.at(name.get<std::string>()),
                              lane_.result("grad." + name.get<std::string>()));
    }
  }
}

// The block as a language model: embedding, block, RMS norm of weight 1, output head.
Array LaneBlock::logits_of(const Array& ids, const Array& embed, const Array& head, ModuleState* state) {
  Executor& executor = lane_.run().executor;
  const Index batch = ids.shape()[0], length = ids.shape()[1], width = embed.shape()[1], vocab = head.shape()[0];
  DeviceFloats weight(executor, embed);
  DeviceFloats embedded(executor, batch * length * width);
  executor.embedding().embedding_forward(batch * length, width, DeviceInts(executor, ids), weight, embedded);
  const Array x = embedded.array({batch, length, width});
  const Array y = state != nullptr ? block_->module().forward(x, *state) : block_->module().forward(x);
  const std::vector<float> ones(static_cast<std::size_t>(width), 1.0F);
  DeviceFloats hidden(executor, y);
  DeviceFloats one(executor, Array::from_floats({width}, ones));
  DeviceFloats normed(executor, y.size());
  DeviceFloats logits(executor, batch * length * vocab);
  DeviceFloats head_weight(executor, head);
  executor.norm().rms_norm_forward(batch * length, width, 1e-5F, false, hidden, one, normed, nullptr, nullptr);
  executor.linear().gemm(Layout::nt, batch * length, vocab, width, normed, head_weight, logits);
  return logits.array({batch, length, vocab});
}

void LaneBlock::pair(const json& call) {
  const Array& prompts = lane_.value(call.at("prompts"));
  const Array& embed = lane_.value(call.at("embed"));
  const Array& head = lane_.value(call.at("head"));
  const Index batch = prompts.shape()[0], length = prompts.shape()[1], vocab = head.shape()[0];
  const Index decode = call.at("decode").get<Index>();
  const auto state = block_->module().allocate_state(batch, length + decode);
  std::vector<Array> logits, ids;
  Array next = logits_of(prompts, embed, head, state.get());
  for (Index token = 0; token < decode; ++token) {
    logits.push_back(reshaped(slice(next, 1, next.shape()[1] - 1, next.shape()[1]), {batch, vocab}));
    ids.push_back(greedy_ids(logits.back()));
    if (token + 1 < decode) next = logits_of(ids.back(), embed, head, state.get());
  }
  add_pair_results(lane_, call, prompts, logits, ids);
  std::vector<Array> whole;
  whole.push_back(copy_of(prompts));
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) whole.push_back(copy_of(ids[i]));
  const Array again = logits_of(join(whole, 1), embed, head, nullptr);
  lane_.run().check.array("pair: one forward without state", slice(again, 1, length - 1, length + decode - 1),
                          lane_.result(call.at("logits")));
}

LaneStack::LaneStack(Lane& lane) : lane_(lane) {}

void LaneStack::call(const json& call) {
  const std::string op = call.at("op");
  if (op == "stack") {
    make(call);
  } else if (op == "forward" || op == "steps") {
    Array y = advance(call);
    lane_.check_same_as(call, y);
    lane_.add_if_named(call, "y", std::move(y));
  } else if (op == "state") {
    states_[call.at("state")] =
        stack(call).allocate_state(call.at("batch_size").get<Index>(), call.at("max_tokens").get<Index>());
  } else if (op == "train_step") {
    const StepResult step = trainer(call).train_step(lane_.cut(call, "ids"), lane_.cut(call, "targets"));
    lane_.add_if_named(call, "loss", Array::from_floats({1}, std::span(&step.loss, 1)));
  } else if (op == "parameters") {
    for (auto& [name, array] : trainer(call).stack().weights()) {
      lane_.add(call.at("prefix").get<std::string>() + name, copy_of(array));
    }
  } else if (op == "loss_and_grads") {
    gradients(call);
  } else if (op == "loss_and_grads_pieces") {
    gradient_pieces(call);
  } else if (op == "pair") {
    pair(call);
  } else if (op == "save_checkpoint" || op == "save_state") {
    save(call);
  } else if (op == "load_state") {
    load(call);
  } else {
    refuse_corrupt("case", "a stack has no op '" + op + "'");
  }
}

SambaTrainer& LaneStack::trainer(const json& call) {
  const auto found = trainers_.find(call.value("stack", "main"));
  if (found == trainers_.end()) refuse_corrupt("case", "no stack of the name " + call.value("stack", "main"));
  return *found->second;
}

SambaStack& LaneStack::stack(const json& call) {
  const auto found = packed_.find(call.value("stack", "main"));
  return found == packed_.end() ? trainer(call).stack() : *found->second;
}

void LaneStack::make(const json& call) {
  const json& given = call.at("options");
  check_keys(given, "seed? lr? max_norm? accumulation_steps? schedule? maximize?", "options");
  const SambaConfig config = config_from_json(call.contains("config") ? call["config"] : lane_.model().at("config"));
  Executor& executor = lane_.run().executor;
  const ConstWeightMap weights = lane_.run().test.tensors.weights();
  std::unique_ptr<SambaTrainer> made;
  if (given.contains("seed")) {
    made = SambaTrainer::create(executor, config, given["seed"].get<std::uint64_t>(), optimizer_settings(given),
                                optional_schedule(given));
    const ArrayMap drawn = made->stack().weights();
    for (const auto& [name, want] : weights) {
      lane_.run().check.array("initial w." + name, drawn.at(name), expand(want));
    }
  } else {
    made = std::make_unique<SambaTrainer>(std::make_unique<SambaStack>(executor, config, expand(weights)), Generator(0),
                                          optimizer_settings(given), optional_schedule(given));
  }
  if (weight_format(weights) != WeightFormat::float32) {
    auto packed = std::make_unique<SambaStack>(executor, config, weights, SambaStack::Use::inference);
    lane_.run().check.text("weight_format", std::string(weight_format_name(packed->weight_format())),
                           lane_.model().at("weight_format"));
    packed->set_stage_recorder(lane_.run().trace);
    packed_[call.at("stack")] = std::move(packed);
  }
  made->stack().set_stage_recorder(lane_.run().trace);
  trainers_[call.at("stack")] = std::move(made);
}

Array LaneStack::advance(const json& call) {
  SambaStack& model = stack(call);
  const Array ids = lane_.cut(call, "ids");
  if (call.contains("lengths")) return model.forward(ids, call["lengths"].get<std::vector<Index>>());
  if (!call.contains("state")) return model.forward(ids);
  SambaState& state = *states_.at(call["state"]);
  if (call.at("op") == "forward") return model.forward(ids, state);
  std::vector<Array> rows;
  for (Index t = 0; t < ids.shape()[1]; ++t) {
    rows.push_back(reshaped(model.step(slice(ids, 1, t, t + 1), state), {ids.shape()[0], 1, model.config().vocab}));
  }
  return join(rows, 1);
}

void LaneStack::gradients(const json& call) {
  SambaTrainer& trained = trainer(call);
  GradientOptions options;
  options.num_items = call.at("num_items").get<Index>();
  options.token_offset = call.at("token_offset").get<Index>();
  if (!call.at("dropout_stream").is_null()) {
    options.dropout = DropoutStream{trained.generator().seed(), call["dropout_stream"].get<std::uint32_t>()};
  }
  const LossAndGradients result =
      trained.stack().loss_and_grads(lane_.value(call.at("ids")), lane_.value(call.at("targets")), options);
  for (const ParameterTensor& tensor : trained.stack().registry().tensors()) {
    lane_.add(call.at("prefix").get<std::string>() + tensor.name,
              reshaped(slice(result.gradients, 0, tensor.offset, tensor.offset + tensor.size), tensor.shape));
  }
}

void LaneStack::gradient_pieces(const json& call) {
  SambaTrainer& trained = trainer(call);
  const Array& ids = lane_.value(call.at("ids"));
  const Array& targets = lane_.value(call.at("targets"));
  PieceSum sum(lane_.run().executor);
  for_each_piece(ids, call.at("pieces").get<Index>(), [&](Index first, Index end) {
    GradientOptions options;
    options.num_items = call.at("num_items").get<Index>();
    options.token_offset = first * ids.shape()[1];
    if (!call.at("dropout_stream").is_null()) {
      options.dropout = DropoutStream{trained.generator().seed(), call["dropout_stream"].get<std::uint32_t>()};
    }
    const LossAndGradients result =
        trained.stack().loss_and_grads(slice(ids, 0, first, end), slice(targets, 0, first, end), options);
    for (const ParameterTensor& tensor : trained.stack().registry().tensors()) {
      sum.add(tensor.name,
              reshaped(slice(result.gradients, 0, tensor.offset, tensor.offset + tensor.size), tensor.shape));
    }
  });
  sum.check(lane_, call.at("same_as"), "loss_and_grads in " + call["pieces"].dump() + " pieces");
}

void LaneStack::pair(const json& call) {
  SambaStack& model = stack(call);
  const Array& prompts = lane_.value(call.at("prompts"));
  const Index batch = prompts.shape()[0], length = prompts.shape()[1], vocab = model.config().vocab;
  const Index decode = call.at("decode").get<Index>();
  const auto state = model.allocate_state(batch, length + decode);
  std::vector<Array> logits, ids;
  Array next = slice(model.forward(prompts, *state), 1, length - 1, length);
  for (Index token = 0; token < decode; ++token) {
    logits.push_back(reshaped(next, {batch, vocab}));
    ids.push_back(greedy_ids(logits.back()));
    if (token + 1 < decode) next = model.step(ids.back(), *state);
  }
  add_pair_results(lane_, call, prompts, logits, ids);
  std::vector<Array> whole;
  whole.push_back(copy_of(prompts));
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) whole.push_back(copy_of(ids[i]));
  lane_.run().check.array("pair: one forward without state",
                          slice(model.forward(join(whole, 1)), 1, length - 1, length + decode - 1),
                          lane_.result(call.at("logits")));
}

void LaneStack::save(const json& call) {
  const SambaTrainer& trained = trainer(call);
  const bool file = call.at("op") == "save_checkpoint";
  const auto path = folder_ / (file ? "file" : call.at("saved").get<std::string>());
  save_checkpoint(trained, path);
  lane_.add_if_named(call, "exp_avg", trained.exp_avg());
  lane_.add_if_named(call, "exp_avg_sq", trained.exp_avg_sq());
  if (!file) return;
  const std::string content = read_file(path);
  Array bytes(DType::uint8, {static_cast<Index>(content.size())});
  std::memcpy(bytes.data(), content.data(), content.size());
  lane_.add(call.at("file"), std::move(bytes));
}

void LaneStack::load(const json& call) {
  auto& loaded = trainers_[call.at("stack")];
  loaded = load_for_training(lane_.run().executor, folder_ / call.at("saved").get<std::string>());
  loaded->stack().set_stage_recorder(lane_.run().trace);
}

}  // namespace samba::verify
