// The kind "block": calls on one block, in order (spec 20, 21, 40, 41).
#include "samba/verify/block_under_test.h"
#include "samba/verify/kinds.h"

namespace samba::verify {
namespace {

class BlockCase {
 public:
  explicit BlockCase(RunContext& run) : run_(run) {}

  void construct() {
    ConstWeightMap weights = run_.test.tensors.weights();
    ArrayMap edited;
    if (run_.body().contains("weight_edits")) {
      for (const auto& [name, reference] : run_.body()["weight_edits"].items()) {
        weights.erase(name);
        if (reference.is_null()) continue;
        weights[name] = edited.emplace(name, resolve_tensor_in(reference, run_.test.tensors)).first->second.view();
      }
    }
    block_ =
        std::make_unique<BlockUnderTest>(run_.executor, run_.body().at("block"), run_.body().at("options"), weights);
    run_.check.text("weight_format", block_->module().weight_format(), run_.body().at("weight_format"));
  }

  void perform(const json& call, const std::string& where) {
    const std::string op = call.at("op");
    StageChecker stages(run_, "stage.");
    if (call.value("stages", false)) block_->module().set_stage_recorder(&stages);
    if (op == "forward" || op == "step" || op == "steps") {
      const Array y = block_->advance(call, resolve(call.at("x")));
      if (call.contains("y")) expect(call["y"], y);
    } else if (op == "backward") {
      check_gradients(call, block_->module().backward(resolve(call.at("x")), resolve(call.at("grad_output"))), where);
    } else if (op == "tape") {
      tape(call, where);
    } else if (op == "tape_forward") {
      tape_forward(call);
    } else if (op == "tape_backward") {
      Tape& tape = *block_->tapes().at(call.at("tape"));
      check_gradients(call, block_->module().backward_from_tape(tape, resolve(call.at("grad_output"))), where);
    } else if (op == "tape_close") {
      block_->tapes().at(call.at("tape"))->close();
    } else {
      block_->manage(call, [this](const json& reference) { return resolve(reference); });
    }
    block_->module().set_stage_recorder(nullptr);
    if (call.contains("expect")) check_expected(call, where);
  }

  void refuse(const json& call, const std::string& where) {
    const BlockUnderTest::Snapshot before = block_->snapshot();
    expect_refusal(run_.check, where, call.at("expect_refusal"), [&] { perform(call, where); });
    block_->module().set_stage_recorder(nullptr);
    block_->check_unchanged(run_.check, where, before);
  }

 private:
  Array resolve(const json& reference) const { return resolve_tensor_in(reference, run_.test.tensors); }
  void expect(const json& name, const Array& got) { run_.expect(name.get<std::string>(), got); }

  void check_gradients(const json& call, const NamedGradients& gradients, const std::string& where) {
    if (!call.contains("grads")) return;
    run_.check.text(where + " names", json(gradients.names).dump(), call["grads"].dump());
    for (const json& grad : call["grads"]) {
      const auto found = gradients.arrays.find(grad.get<std::string>());
      if (found != gradients.arrays.end()) expect("grad." + grad.get<std::string>(), found->second);
    }
  }

  void tape(const json& call, const std::string& where) {
    const Array x = resolve(call.at("x"));
    const Array grad_output = resolve(call.at("grad_output"));
    if (!call.contains("variants")) {
      const BlockModule::Taped taped = block_->module().forward_with_tape(x);
      block_->module().backward_from_tape(*taped.tape, grad_output);
      return;
    }
    for (const json& variant : call["variants"]) {
      const BlockModule::Taped taped =
          block_->module().forward_with_tape(x, variant.at("activation_budget_bytes").get<std::int64_t>(),
                                             variant.at("minimum_replay_ops_per_byte").get<std::int64_t>());
      const std::string name = where + " " + variant.dump();
      if (call.contains("y")) expect(call["y"], taped.y);
      run_.check.holds(name, taped.tape->retained() == variant.at("retained").get<bool>(),
                       taped.tape->retained() ? "retained" : "not retained");
      run_.check.integer(name + " stage_bytes", taped.tape->stage_bytes(),
                         variant.at("stage_bytes").get<std::int64_t>());
      check_gradients(call, block_->module().backward_from_tape(*taped.tape, grad_output), name);
    }
  }

  void tape_forward(const json& call) {
    const std::int64_t budget = call.value("activation_budget_bytes", BlockModule::kDefaultActivationBudget);
    BlockModule::Taped taped = block_->module().forward_with_tape(
        resolve(call.at("x")), budget, call.value("minimum_replay_ops_per_byte", std::int64_t{0}));
    block_->tapes()[call.at("tape")] = std::move(taped.tape);
    if (call.contains("y")) expect(call["y"], taped.y);
  }

  void check_expected(const json& call, const std::string& where) {
    const json& expected = call["expect"];
    if (expected.contains("state")) {
      const ArrayMap pieces = block_->state(call).pieces();
      for (const auto& [piece, tensor] : member_or_empty(expected["state"], "pieces").items()) {
        const auto found = pieces.find(piece);
        run_.check.holds(where + ": piece " + piece, found != pieces.end(), "the state has no piece of this name");
        if (found != pieces.end()) check_piece(run_.check, tensor, found->second, resolve(tensor));
      }
      check_counters(run_.check, where + ": state", expected["state"], block_->state(call).counters());
    }
    const ArrayMap reports = block_->module().reports();
    for (const auto& [report, tensor] : member_or_empty(expected, "reports").items()) {
      const auto found = reports.find(report);
      run_.check.holds(where + ": report " + report, found != reports.end(), "the block has no report of this name");
      if (found != reports.end()) run_.check.array(tensor, found->second, resolve(tensor));
    }
  }

  RunContext& run_;
  std::unique_ptr<BlockUnderTest> block_;
};

// Options that samba does not offer: a case for them is not applicable, unless it is about that refusal.
void refuse_unless_unsupported(const Error& error, const json* expected) {
  if (error.kind() != ErrorKind::unsupported) return;
  if (expected != nullptr && expected->at("kind") == "unsupported") return;
  throw NotApplicable(error.what());
}

// Constructs; false when the case ends with a refusal that came at construction.
bool construct(RunContext& run, BlockCase& block) {
  const json& calls = run.body().at("calls");
  const json* expected = nullptr;
  if (run.body().contains("expect_refusal")) expected = &run.body()["expect_refusal"];
  const bool at_construction = expected != nullptr;
  if (expected == nullptr && !calls.empty() && calls[0].contains("expect_refusal")) {
    expected = &calls[0]["expect_refusal"];
  }
  try {
    block.construct();
  } catch (const Error& error) {
    refuse_unless_unsupported(error, expected);
    if (expected == nullptr) throw;
    check_refusal(run.check, "construction", *expected, error);
    return false;
  }
  if (at_construction) miss_refusal(run.check, "construction", *expected);
  return !at_construction;
}

// A program whose state cannot hold the wrong piece may refuse already where it is set, with the words of the refusal
// that the case expects of the next call.
const json* later_refusal(const json& calls, std::size_t index) {
  if (calls[index].at("op") != "set_state" || index + 1 >= calls.size()) return nullptr;
  const json& next = calls[index + 1];
  return next.contains("expect_refusal") ? &next["expect_refusal"] : nullptr;
}

}  // namespace

void run_block(RunContext& run) {
  BlockCase block(run);
  if (!construct(run, block)) return;
  const json& calls = run.body().at("calls");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string where = "calls/" + std::to_string(i) + " " + calls[i].at("op").get<std::string>();
    if (calls[i].contains("expect_refusal")) {
      block.refuse(calls[i], where);
      continue;
    }
    try {
      block.perform(calls[i], where);
    } catch (const Error& error) {
      const json* expected = later_refusal(calls, i);
      if (expected == nullptr) throw;
      check_refusal(run.check, where, *expected, error);
      return;
    }
  }
}

}  // namespace samba::verify
