// One trainer among several ranks: sums gradients over ranks in the order of the spec's own tree while the backward of
// earlier layers goes on, hands new parameter values round, and makes the clip norm from shared work.
//
// Of a step, in this order and on every rank: begin(), ready() and embedding_rows() from inside the backward,
// finish_gradient(); then the optimizer's calls. On host memory bytes move, and sums are made, on a thread of its own;
// all ranks put the same jobs into their queues in the same order.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "samba/kernels/executor.h"
#include "samba/train/communicator.h"
#include "samba/train/gradient_shares.h"
#include "samba/train/rank_split.h"

namespace samba {

// Where a trainer stands among ranks.
struct RankPlace {
  Communicator* ranks = nullptr;
  Index rows = 1;    // of the whole step
  Index length = 1;  // tokens of a row
  Index bucket_elements = Index{1} << 20;
};

class RankGroup {
 public:
  RankGroup(const RankPlace& place, Executor& executor, const Registry& registry, const StackConfig& config,
            Index microbatches);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  Communicator& communicator() const { return ranks_; }
  const RankSplit& split() const { return split_; }
  const StepShape& step() const { return step_; }
  const GradientShares& shares() const { return shares_; }
  const std::vector<ParameterRange>& owned() const { return shares_.owned(ranks_.rank()); }

  // `ids`: of the microbatch that this rank shares with others; empty when it shares none.
  void begin(float* gradient, std::span<const std::int32_t> ids);
  // Elements [first, first + count) of the gradient hold this rank's values.
  void ready(Index first, Index count);
  // The gradient of this rank's rows of a shared microbatch, (rows * length, d_model) on the device.
  void embedding_rows(const float* rows);
  // The elements of owned() hold the sums over all ranks. A rank whose backward failed calls it too, so that the others
  // do not wait for it; what the sums hold is then worth nothing.
  void finish_gradient();

  // ss_j of every tensor, the elements of owned() read from `gradient`.
  std::vector<float> sums_of_squares(const float* gradient);
  // Sends the values of this rank's shares of a bucket and receives the others', while the caller goes on; wait() ends
  // it.
  void share_parameters(std::size_t bucket, float* parameters);
  void wait();

 private:
  void post(std::function<void()> job);
  void work();
  void post_next();
  void reduce(std::size_t bucket, int first_level, int end_level);
  void gather(std::size_t bucket, float* parameters);
  void exchange_floats(int partner, const float* sent, Index sent_count, float* received, Index received_count);
  void exchange_rows(const float* rows);
  struct IdRange {
    Index first = 0, end = 0;  // ids whose rows reach into the elements below
    Index first_element = 0, end_element = 0;
  };
  IdRange ids_of_member(Index member) const;

  Communicator& ranks_;
  Executor& executor_;
  std::vector<ParameterTensor> tensors_;
  StepShape step_;
  RankSplit split_;
  GradientShares shares_;
  bool tied_;
  Index width_;
  int group_levels_ = 0;  // levels of the tree inside a shared microbatch
  bool overlaps_;         // jobs run on worker_

  // Of the step in hand.
  float* gradient_ = nullptr;
  std::vector<std::int32_t> ids_;
  std::vector<Index> missing_;  // elements of each bucket that are not ready
  bool head_missing_ = false;   // the tied head's part of the embedding bucket
  std::size_t next_ = 0;        // bucket
  std::vector<float> scratch_, staging_;
  Workspace workspace_;

  std::vector<std::size_t> leaf_borders_;          // bytes of each rank's leaf sums, end to end
  std::vector<std::vector<Index>> tensor_leaves_;  // of each tensor, where its leaf sums lie in them

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace samba
