#include "samba/verify/block_under_test.h"

#include "samba/verify/slices.h"

namespace samba::verify {

namespace {

// The buffers of a Mamba-2 state may be given by their first rows; the others are +0.
Array with_missing_rows(Array given, const Shape& whole) {
  const Shape& shape = given.shape();
  if (shape.size() != 3 || whole.size() != 3 || shape[1] >= whole[1]) return given;
  if (shape[0] != whole[0] || shape[2] != whole[2] || given.dtype() != DType::float32) return given;
  const std::vector<Array> parts = {given, Array::zeros({whole[0], whole[1] - shape[1], whole[2]})};
  return join(parts, 1);
}

}  // namespace

Array BlockUnderTest::advance(const json& call, const Array& x) {
  const std::string op = call.at("op");
  if (op == "steps") {
    std::vector<Array> outputs;
    for (Index t = 0; t < x.shape().at(1); ++t) outputs.push_back(one_step(call, slice(x, 1, t, t + 1)));
    return join(outputs, 1);
  }
  if (op == "step") return one_step(call, x);
  if (call.value("session", false)) return session(call).forward(x);
  if (call.contains("lengths")) {
    const auto lengths = call["lengths"].get<std::vector<Index>>();
    if (call.contains("state")) module_.forward(x, state(call), lengths);  // refused
    return module_.forward(x, lengths);
  }
  return call.contains("state") ? module_.forward(x, state(call)) : module_.forward(x);
}

Array BlockUnderTest::one_step(const json& call, ConstArray x) {
  if (call.value("session", false)) return session(call).step(std::move(x));
  if (!call.contains("state")) module_.step(std::move(x));  // refused
  return module_.step(std::move(x), state(call));
}

void BlockUnderTest::manage(const json& call, const Resolve& resolve) {
  const std::string op = call.at("op");
  if (op == "state") {
    const std::string name = call.at("state");
    sessions_.erase(name);
    states_[name] = module_.allocate_state(call.at("batch_size").get<Index>(), call.value("max_tokens", Index{0}));
    if (call.contains("set")) set(*states_[name], call["set"], resolve);
  } else if (op == "set_state") {
    set(state(call), call.at("set"), resolve);
  } else if (op == "set_input_states") {
    state(call).set_input_states(resolve(call.at("theta")), resolve(call.at("h")), resolve(call.at("k")),
                                 resolve(call.at("v")));
  } else if (op == "set_weight") {
    module_.set_weight(call.at("name"), resolve(call.at("value")));
  } else if (op == "open") {
    sessions_[call.at("state")] = std::make_unique<DecodeSession>(module_.open_session(state(call)));
  } else if (op == "sync") {
    session(call).sync_state();
  } else if (op == "load") {
    session(call).load_state();
  } else if (op == "close") {
    session(call).close();
  } else if (op == "discard") {
    session(call).discard();
  } else {
    throw Error(ErrorKind::internal, "no op of a block: " + op);
  }
}

ModuleState& BlockUnderTest::state(const json& call) {
  const auto found = states_.find(call.at("state"));
  if (found == states_.end()) refuse_corrupt("case", "no state of the name " + call["state"].dump());
  return *found->second;
}

DecodeSession& BlockUnderTest::session(const json& call) {
  const auto found = sessions_.find(call.at("state"));
  if (found == sessions_.end()) refuse_corrupt("case", "no session on the state " + call["state"].dump());
  return *found->second;
}

void BlockUnderTest::set(ModuleState& state, const json& values, const Resolve& resolve) {
  ArrayMap arrays;
  std::map<std::string, Index> counters;
  for (const auto& [key, value] : values.items()) {
    if (key != "pieces") counters[key] = value.is_boolean() ? Index{value.get<bool>()} : value.get<Index>();
  }
  ConstArrayMap pieces;
  if (values.contains("pieces")) {
    const ArrayMap current = state.pieces();
    for (const auto& [name, reference] : values["pieces"].items()) {
      const auto whole = current.find(name);
      Array given = resolve(reference);
      if (whole != current.end()) given = with_missing_rows(std::move(given), whole->second.shape());
      pieces[name] = arrays.emplace(name, std::move(given)).first->second.view();
    }
  }
  state.set(pieces, counters);
}

BlockUnderTest::Snapshot BlockUnderTest::snapshot() const {
  Snapshot taken;
  for (const auto& [name, state] : states_) {
    taken.pieces[name] = state->pieces();
    taken.counters[name] = state->counters();
  }
  return taken;
}

void BlockUnderTest::check_unchanged(Checker& check, const std::string& where, const Snapshot& before) const {
  const Snapshot after = snapshot();
  for (const auto& [state, pieces] : before.pieces) {
    for (const auto& [piece, array] : pieces) {
      const Array& now = after.pieces.at(state).at(piece);
      check.text(where + ": " + state + "." + piece + " after the refusal", sha256_of(now), sha256_of(array));
    }
    for (const auto& [counter, value] : before.counters.at(state)) {
      check.integer(where + ": " + state + "." + counter + " after the refusal", after.counters.at(state).at(counter),
                    value);
    }
  }
}

void check_piece(Checker& check, const std::string& what, const Array& got, const Array& want) {
  const bool rows_left_out = want.shape().size() == 3 && got.shape().size() == 3 && want.shape()[1] < got.shape()[1];
  check.array(what, rows_left_out ? slice(got, 1, 0, want.shape()[1]) : got, want);
}

void check_counters(Checker& check, const std::string& where, const json& expected,
                    const std::map<std::string, Index>& got) {
  for (const auto& [counter, value] : expected.items()) {
    if (counter == "pieces") continue;
    const auto found = got.find(counter);
    const Index want = value.is_boolean() ? Index{value.get<bool>()} : value.get<Index>();
    check.holds(where + "." + counter, found != got.end(), "the state has no counter of this name");
    if (found != got.end()) check.integer(where + "." + counter, found->second, want);
  }
}

void StageChecker::record(std::string_view name, const Shape& shape, const float* device) {
  const std::string full = prefix_ + std::string(name) + suffix_;
  const Array* want = run_.test.tensors.find(full);
  if (want == nullptr) return;
  Array got = Array::zeros(shape);
  if (got.byte_size() > 0) run_.executor.memory().copy_to_host(got.data(), device, got.byte_size());
  run_.check.array(full, got, *want);
}

}  // namespace samba::verify
