// Inside lib/verify: a block with the states, sessions and tapes that a case gives names to. The words of calls are
// those of test/golden/README.md section 3; hash suites and columns use them too.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "samba/blocks/module.h"
#include "samba/verify/runner.h"

namespace samba::verify {

// The array that a call's tensor reference means.
using Resolve = std::function<Array(const json& reference)>;

class BlockUnderTest {
 public:
  BlockUnderTest(Executor& executor, const std::string& kind, const json& options, const ConstWeightMap& weights)
      : module_(executor, kind, options, weights) {}

  BlockModule& module() { return module_; }

  // "forward", "step", "steps" on x, with the call's state, session and lengths. The outputs of "steps" are joined
  // along the token axis.
  Array advance(const json& call, const Array& x);
  // The ops that give no result: state, set_state, set_input_states, set_weight, open, sync, load, close, discard.
  void manage(const json& call, const Resolve& resolve);

  ModuleState& state(const json& call);
  // State pieces and counters as they are, of all states, to tell whether a refused call changed one.
  struct Snapshot {
    std::map<std::string, ArrayMap> pieces;
    std::map<std::string, std::map<std::string, Index>> counters;
  };
  Snapshot snapshot() const;
  void check_unchanged(Checker& check, const std::string& where, const Snapshot& before) const;

  std::map<std::string, std::unique_ptr<Tape>>& tapes() { return tapes_; }

 private:
  DecodeSession& session(const json& call);
  Array one_step(const json& call, ConstArray x);
  void set(ModuleState& state, const json& values, const Resolve& resolve);

  BlockModule module_;
  std::map<std::string, std::unique_ptr<ModuleState>> states_;
  std::map<std::string, std::unique_ptr<DecodeSession>> sessions_;  // goes before the states
  std::map<std::string, std::unique_ptr<Tape>> tapes_;
};

// Compares the counters that `expected` lists with `got`.
// The rows that a case records of a piece: all, or the first ones of a Mamba-2 buffer.
void check_piece(Checker& check, const std::string& what, const Array& got, const Array& want);
void check_counters(Checker& check, const std::string& where, const json& expected,
                    const std::map<std::string, Index>& got);

// Compares what a call records with the "stage." tensors of the case, in the order of computation.
class StageChecker final : public StageRecorder {
 public:
  explicit StageChecker(RunContext& run, std::string prefix, std::string suffix = "")
      : run_(run), prefix_(std::move(prefix)), suffix_(std::move(suffix)) {}
  void record(std::string_view name, const Shape& shape, const float* device) override;

 private:
  RunContext& run_;
  std::string prefix_, suffix_;
};

}  // namespace samba::verify
