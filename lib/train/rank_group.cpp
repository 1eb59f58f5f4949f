#include "samba/train/rank_group.h"

#include <algorithm>
#include <cstring>

#include "samba/core/float_environment.h"
#include "samba/numerics/fold.h"

namespace samba {

namespace {

std::span<const std::byte> bytes_of(const float* values, Index count) {
  return std::as_bytes(std::span(values, static_cast<std::size_t>(count)));
}

std::span<std::byte> bytes_of(float* values, Index count) {
  return std::as_writable_bytes(std::span(values, static_cast<std::size_t>(count)));
}

// kept = F(F(kept) + F(other)), as a whole vectorizes
void add_floats(Index n, const float* other, float* kept) {
  for (Index i = 0; i < n; ++i) kept[i] = add(kept[i], other[i]);
}

}  // namespace

RankGroup::RankGroup(const RankPlace& place, Executor& executor, const Registry& registry, const StackConfig& config,
                     Index microbatches)
    : ranks_(*place.ranks),
      executor_(executor),
      tensors_(registry.tensors()),
      step_{place.rows, place.length, microbatches},
      split_(split_step(config, step_, ranks_.rank(), ranks_.size())),
      shares_(registry, ranks_.size(), place.bucket_elements),
      tied_(config.tie_embeddings),
      width_(config.d_model),
      overlaps_(executor.memory().is_host()),
      workspace_(executor.memory()) {
  while ((Index{1} << group_levels_) < split_.group) ++group_levels_;
  tensor_leaves_.resize(tensors_.size());
  for (std::size_t j = 0; j < tensors_.size(); ++j) {
    tensor_leaves_[j].resize(static_cast<std::size_t>(leaf_count(tensors_[j].size)));
  }
  Index next = 0;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    leaf_borders_.push_back(static_cast<std::size_t>(next) * sizeof(float));
    for (const ParameterRange& range : shares_.owned(rank)) {
      const Index leaf = leaf_length(tensors_[range.tensor].size);
      Index at = (range.first - tensors_[range.tensor].offset) / leaf;
      for (Index done = 0; done < range.count; done += leaf) {
        tensor_leaves_[range.tensor][static_cast<std::size_t>(at++)] = next++;
      }
    }
  }
  leaf_borders_.push_back(static_cast<std::size_t>(next) * sizeof(float));
  if (overlaps_) worker_ = std::thread([this] { work(); });
}

RankGroup::~RankGroup() {
  if (!worker_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

// ---- the queue ----

void RankGroup::post(std::function<void()> job) {
  if (!overlaps_) {
    job();
    return;
  }
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void RankGroup::work() {
  const FloatScope float_scope;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;  // jobs that are left belong to a step that failed
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    if (failure_ != nullptr) {  // the others are gone
      changed_.notify_all();
      continue;
    }
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    failure_ = failure;
    changed_.notify_all();
  }
}

void RankGroup::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// ---- the gradient ----

void RankGroup::begin(float* gradient, std::span<const std::int32_t> ids) {
  wait();
  gradient_ = gradient;
  ids_.assign(ids.begin(), ids.end());
  missing_.clear();
  for (const GradientBucket& bucket : shares_.buckets()) missing_.push_back(bucket.end() - bucket.first());
  head_missing_ = tied_ && split_.group > 1;
  next_ = 0;
}

void RankGroup::ready(Index first, Index count) {
  const std::size_t last = missing_.size() - 1;
  if (head_missing_ && first == shares_.buckets()[last].first()) {
    head_missing_ = false;
    post([this, last] { reduce(last, 0, group_levels_); });
    return;
  }
  for (std::size_t b = 0; b <= last; ++b) {
    const GradientBucket& bucket = shares_.buckets()[b];
    const Index begin = std::max(first, bucket.first()), end = std::min(first + count, bucket.end());
    if (begin < end) missing_[b] -= end - begin;
  }
  while (next_ < last && missing_[next_] <= 0) post_next();
  if (next_ == last && missing_[last] <= 0 && split_.group == 1) post_next();
}

void RankGroup::post_next() {
  const std::size_t bucket = next_++;
  const bool shared = bucket + 1 == missing_.size() && split_.group > 1;
  post([this, bucket, first = shared ? group_levels_ : 0] { reduce(bucket, first, shares_.levels()); });
}

void RankGroup::finish_gradient() {
  const std::size_t last = missing_.size() - 1;
  if (head_missing_) ready(shares_.buckets()[last].first(), 0);
  while (next_ < last) post_next();
  if (next_ == last && split_.group > 1) embedding_rows(nullptr);
  while (next_ <= last) post_next();
  wait();
}

void RankGroup::exchange_floats(int partner, const float* sent, Index sent_count, float* received,
                                Index received_count) {
  if (!executor_.memory().is_host()) {
    staging_.resize(static_cast<std::size_t>(sent_count));
    executor_.memory().copy_to_host(staging_.data(), sent, staging_.size() * sizeof(float));
    sent = staging_.data();
  }
  ranks_.exchange(partner, bytes_of(sent, sent_count), partner, bytes_of(received, received_count));
}

void RankGroup::reduce(std::size_t bucket_index, int first_level, int end_level) {
  const GradientBucket& bucket = shares_.buckets()[bucket_index];
  const auto border = [&](int share) { return bucket.borders[static_cast<std::size_t>(share)]; };
  for (int level = first_level; level < end_level; ++level) {
    const ShareRun held = shares_.held(ranks_.rank(), level), kept = shares_.held(ranks_.rank(), level + 1);
    const ShareRun given = kept.first == held.first ? ShareRun{kept.end, held.end} : ShareRun{held.first, kept.first};
    const Index count = border(kept.end) - border(kept.first);
    scratch_.resize(static_cast<std::size_t>(count));
    exchange_floats(ranks_.rank() ^ (1 << level), gradient_ + border(given.first),
                    border(given.end) - border(given.first), scratch_.data(), count);
    float* sum = gradient_ + border(kept.first);
    if (executor_.memory().is_host()) {
      add_floats(count, scratch_.data(), sum);
    } else {
      const Workspace::Scope scope(workspace_);
      float* other = workspace_.floats(count);
      executor_.memory().copy_to_device(other, scratch_.data(), scratch_.size() * sizeof(float));
      executor_.elementwise().add(count, sum, other, sum);
    }
  }
}

// ---- the embedding of a shared microbatch ----
//
// A cell of its gradient is one chain over the microbatch's positions, which parts cannot be added up to. So each
// member of the group gets the token rows of the ids it holds, from every member in the order of positions, and walks
// the chain itself. All ids of the microbatch are known to all members.

RankGroup::IdRange RankGroup::ids_of_member(Index member) const {
  const GradientBucket& bucket = shares_.buckets().back();
  const int rank = static_cast<int>(split_.first_microbatch * split_.group + member);
  const ShareRun held = shares_.held(rank, group_levels_);
  IdRange range;
  range.first_element = bucket.borders[static_cast<std::size_t>(held.first)] - bucket.first();
  range.end_element = bucket.borders[static_cast<std::size_t>(held.end)] - bucket.first();
  range.first = range.first_element / width_;
  range.end = range.first_element == range.end_element ? range.first : (range.end_element + width_ - 1) / width_;
  return range;
}

void RankGroup::embedding_rows(const float* rows) {
  exchange_rows(rows);
  post_next();
}

void RankGroup::exchange_rows(const float* device_rows) {
  const Index tokens = split_.rows * step_.length;
  const auto width = static_cast<std::size_t>(width_);
  std::vector<float> rows(static_cast<std::size_t>(tokens) * width, 0.0F);
  if (device_rows != nullptr) {
    executor_.memory().copy_to_host(rows.data(), device_rows, rows.size() * sizeof(float));
  }
  const auto id_at = [&](Index member, Index t) { return ids_[static_cast<std::size_t>(member * tokens + t)]; };
  const auto in = [](const IdRange& range, Index id) { return id >= range.first && id < range.end; };

  const IdRange mine = ids_of_member(split_.member);
  std::vector<std::int32_t> ids;  // those this rank holds, from its first
  std::vector<Index> first_of_member;
  for (Index member = 0; member < split_.group; ++member) {
    first_of_member.push_back(static_cast<Index>(ids.size()));
    for (Index t = 0; t < tokens; ++t) {
      if (in(mine, id_at(member, t))) ids.push_back(static_cast<std::int32_t>(id_at(member, t) - mine.first));
    }
  }
  first_of_member.push_back(static_cast<Index>(ids.size()));
  std::vector<float> gathered(ids.size() * width);
  std::vector<std::vector<float>> letters(static_cast<std::size_t>(split_.group));
  for (Index member = 0; member < split_.group; ++member) {
    const IdRange theirs = ids_of_member(member);
    std::vector<float>& letter = letters[static_cast<std::size_t>(member)];
    for (Index t = 0; t < tokens; ++t) {
      const float* row = rows.data() + t * width_;
      if (in(theirs, id_at(split_.member, t))) letter.insert(letter.end(), row, row + width_);
    }
  }
  const std::vector<float>& own = letters[static_cast<std::size_t>(split_.member)];
  std::copy(own.begin(), own.end(),
            gathered.begin() + first_of_member[static_cast<std::size_t>(split_.member)] * width_);
  post([&] {
    for (Index step = 1; step < split_.group; ++step) {
      const Index member = split_.member ^ step;
      const auto at = static_cast<std::size_t>(member);
      const int partner = static_cast<int>(ranks_.rank() - split_.member + member);
      const Index count = first_of_member[at + 1] - first_of_member[at];
      ranks_.exchange(partner, std::as_bytes(std::span(letters[at])), partner,
                      bytes_of(gathered.data() + first_of_member[at] * width_, count * width_));
    }
  });
  wait();

  if (mine.first == mine.end) return;
  const Workspace::Scope scope(workspace_);
  float* lookup = workspace_.floats((mine.end - mine.first) * width_);
  const auto positions = static_cast<Index>(ids.size());
  if (positions == 0) {
    executor_.memory().fill_zero(lookup, static_cast<std::size_t>(mine.end - mine.first) * width * sizeof(float));
  } else {
    std::int32_t* device_ids = workspace_.ints(positions);
    float* device_gathered = workspace_.floats(positions * width_);
    executor_.memory().copy_to_device(device_ids, ids.data(), ids.size() * sizeof(std::int32_t));
    executor_.memory().copy_to_device(device_gathered, gathered.data(), gathered.size() * sizeof(float));
    executor_.embedding().embedding_backward(positions, mine.end - mine.first, width_, device_ids, device_gathered,
                                             false, -1, lookup);
  }
  const float* part = lookup + (mine.first_element - mine.first * width_);
  float* sum = gradient_ + shares_.buckets().back().first() + mine.first_element;
  const Index count = mine.end_element - mine.first_element;
  if (tied_) {
    executor_.elementwise().add(count, part, sum, sum);  // the lookup is the left operand
  } else {
    executor_.memory().copy(sum, part, static_cast<std::size_t>(count) * sizeof(float));
  }
  executor_.memory().synchronize();
}

// ---- the optimizer ----

std::vector<float> RankGroup::sums_of_squares(const float* gradient) {
  std::vector<float> leaves(leaf_borders_.back() / sizeof(float));
  float* mine = leaves.data() + leaf_borders_[static_cast<std::size_t>(ranks_.rank())] / sizeof(float);
  for (const ParameterRange& range : owned()) {
    const Index leaf = leaf_length(tensors_[range.tensor].size);
    executor_.optimizer().leaf_sums_of_squares(leaf, range.count, gradient + range.first, mine);
    mine += (range.count + leaf - 1) / leaf;
  }
  post([&] { all_gather(ranks_, std::as_writable_bytes(std::span(leaves)), leaf_borders_); });
  wait();
  std::vector<float> sums;
  for (const std::vector<Index>& places : tensor_leaves_) {
    TreeFold tree;
    for (const Index place : places) tree.push(leaves[static_cast<std::size_t>(place)]);
    sums.push_back(tree.finish());
  }
  return sums;
}

void RankGroup::share_parameters(std::size_t bucket, float* parameters) {
  executor_.memory().synchronize();
  post([this, bucket, parameters] { gather(bucket, parameters); });
}

void RankGroup::gather(std::size_t bucket_index, float* parameters) {
  const GradientBucket& bucket = shares_.buckets()[bucket_index];
  const auto border = [&](int share) { return bucket.borders[static_cast<std::size_t>(share)]; };
  for (int level = shares_.levels(); level-- > 0;) {
    const ShareRun all = shares_.held(ranks_.rank(), level), mine = shares_.held(ranks_.rank(), level + 1);
    const ShareRun theirs = mine.first == all.first ? ShareRun{mine.end, all.end} : ShareRun{all.first, mine.first};
    const Index count = border(theirs.end) - border(theirs.first);
    float* received = parameters + border(theirs.first);
    if (!executor_.memory().is_host()) {
      scratch_.resize(static_cast<std::size_t>(count));
      received = scratch_.data();
    }
    exchange_floats(ranks_.rank() ^ (1 << level), parameters + border(mine.first),
                    border(mine.end) - border(mine.first), received, count);
    if (!executor_.memory().is_host()) {
      executor_.memory().copy_to_device(parameters + border(theirs.first), received,
                                        static_cast<std::size_t>(count) * sizeof(float));
    }
  }
}

}  // namespace samba
