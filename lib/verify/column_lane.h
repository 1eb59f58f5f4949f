// Inside lib/verify: one part of a cell of a lane of published columns (test/golden/columns/README.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "samba/model/mlp_inference.h"
#include "samba/train/mlp_trainer.h"
#include "samba/verify/block_under_test.h"
#include "samba/verify/runner.h"
#include "samba/verify/training.h"

namespace samba::verify {

// What the calls of a program work on: inputs by name, results by name.
class Lane {
 public:
  explicit Lane(RunContext& run);

  RunContext& run() { return run_; }
  const json& model() const { return run_.body().at("model"); }
  const json& cell() const { return run_.body().at("cells").at(run_.test.cell); }
  const json& expected() const { return cell().at("parts").at(run_.test.part); }
  // The programs of the cell: "programs", or those the cell names.
  const json& programs() const;

  // A result, an input of the cell (a tensor or a view), or a tensor of the carriers.
  const Array& value(const std::string& name);
  // The value of a call's key cut to its "rows" and "positions".
  Array cut(const json& call, const char* key);
  static Array cut(const json& call, const Array& array);

  void add(const json& name, Array result) {
    run_.note(name.get<std::string>(), result);
    results_[name.get<std::string>()] = std::move(result);
  }
  // Adds only when the call gives the result a name.
  void add_if_named(const json& call, const char* key, Array result) {
    if (call.contains(key)) add(call[key], std::move(result));
  }
  // "same_as": the outcome equals that result, cut to the same rows and positions.
  void check_same_as(const json& call, const Array& outcome);
  const Array& result(const std::string& name) const;
  void forget_results() { results_.clear(); }

 private:
  RunContext& run_;
  ArrayMap inputs_;  // views, made when first used
  ArrayMap results_;
};

// A view of one of the fixture's flat tensors.
Array evaluate_view(const json& view, const TensorSet& tensors);

// Compares the results of the part with their digests, and the published digest with what the recipe gives.
void check_digests(Lane& lane, const json& recipe);

// Calls by the type of the model. Each gives false when the op is none of its own.
bool call_function(Lane& lane, const json& call);

// Gradients of runs of rows, combined by the accumulation tree; the whole batch's by name for comparison.
class PieceSum {
 public:
  explicit PieceSum(Executor& executor) : executor_(executor) {}
  void add(const std::string& name, ConstArray piece);
  void check(Lane& lane, const json& same_as, const std::string& where);

 private:
  Executor& executor_;
  std::map<std::string, std::vector<Array>> pieces_;
};

class LaneBlock {
 public:
  explicit LaneBlock(Lane& lane);
  void call(const json& call);

 private:
  void backward(const json& call);
  void backward_pieces(const json& call);
  void tape(const json& call);
  void pair(const json& call);
  Array logits_of(const Array& ids, const Array& embed, const Array& head, ModuleState* state);
  void check_expected(const json& call);

  Lane& lane_;
  std::unique_ptr<BlockUnderTest> block_;
};

class LaneStack {
 public:
  explicit LaneStack(Lane& lane);
  void call(const json& call);

 private:
  SambaTrainer& trainer(const json& call);
  SambaStack& stack(const json& call);  // what a forward runs on
  void make(const json& call);
  Array advance(const json& call);
  void gradients(const json& call);
  void gradient_pieces(const json& call);
  void pair(const json& call);
  void save(const json& call);
  void load(const json& call);

  Lane& lane_;
  std::map<std::string, std::unique_ptr<SambaTrainer>> trainers_;
  std::map<std::string, std::unique_ptr<SambaStack>> packed_;  // of packed weights; the trainer has the expanded ones
  std::map<std::string, std::unique_ptr<SambaState>> states_;
  TemporaryFolder folder_;
};

class LaneMlp {
 public:
  explicit LaneMlp(Lane& lane) : lane_(lane) {}
  void call(const json& call);

 private:
  void make(const json& call);

  Lane& lane_;
  std::unique_ptr<MlpInference> inference_;
  std::unique_ptr<MlpTrainer> trainer_;
};

// The results of "pair" from the logits of each token of a greedy decoding.
void add_pair_results(Lane& lane, const json& call, const Array& prompts, const std::vector<Array>& logits,
                      const std::vector<Array>& ids);
// The tokens with the largest logits, int32 (B, 1); logits (B, V).
Array greedy_ids(const Array& logits);

}  // namespace samba::verify
