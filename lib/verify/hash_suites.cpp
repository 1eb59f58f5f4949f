// The kind "block" of the hash suites: larger blocks, drawn by seed, compared by digest
// (test/golden/hashes/README.md section 3).
#include "samba/verify/block_under_test.h"
#include "samba/verify/hash_results.h"
#include "samba/verify/kinds.h"

namespace samba::verify {
namespace {

void check_expected(RunContext& run, HashResults& results, BlockUnderTest& block, const json& call,
                    const std::string& where) {
  if (!call.contains("expect")) return;
  const json& expected = call["expect"];
  const ArrayMap reports = block.module().reports();
  for (const auto& [report, name] : member_or_empty(expected, "reports").items()) {
    const auto found = reports.find(report);
    run.check.holds(where + ": report " + report, found != reports.end(), "the block has no report of this name");
    if (found != reports.end()) results.add(name, copy_of(found->second));
  }
  if (!expected.contains("state")) return;
  const ModuleState& state = block.state(call);
  check_state_results(run, results, where + ": state", expected["state"], state.pieces(), state.counters());
}

}  // namespace

void run_hash_block(RunContext& run) {
  const ArrayMap drawn = draw_tensors(run);
  std::unique_ptr<BlockUnderTest> block;
  try {
    block = std::make_unique<BlockUnderTest>(run.executor, run.body().at("block"), run.body().at("options"),
                                             drawn_weights(run, drawn));
    block->module().set_stage_recorder(run.trace);
    run.check.text("weight_format", block->module().weight_format(), run.body().at("weight_format"));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unsupported) throw NotApplicable(error.what());
    throw;
  }
  HashResults results(run);
  const Resolve resolve = [&](const json& name) { return copy_of(drawn.at(name.get<std::string>())); };
  std::size_t number = 0;
  for (const json& call : run.body().at("calls")) {
    const std::string op = call.at("op");
    const std::string where = "calls/" + std::to_string(number++) + " " + op;
    run.begin_call(where);
    if (op == "forward" || op == "steps") {
      Array y = block->advance(call, cut_positions(call, drawn.at(call.at("x").get<std::string>())));
      results.check_same_as(call, y);
      results.add(call.at("y"), std::move(y));
    } else if (op == "backward") {
      NamedGradients gradients = block->module().backward(resolve(call.at("x")), resolve(call.at("grad_output")));
      run.check.text(where + " names", json(gradients.names).dump(), call.at("grads").dump());
      for (const json& grad : call["grads"]) {
        results.add("grad." + grad.get<std::string>(), std::move(gradients.arrays.at(grad.get<std::string>())));
      }
    } else {
      block->manage(call, resolve);
    }
    check_expected(run, results, *block, call, where);
  }
  results.check_complete();
}

}  // namespace samba::verify
