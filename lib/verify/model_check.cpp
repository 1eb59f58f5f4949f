#include "samba/verify/model_check.h"

#include <chrono>
#include <cmath>
#include <cstdio>

#include "samba/convert/model_source.h"
#include "samba/generate/decode_session.h"
#include "samba/numerics/philox.h"
#include "samba/train/checkpoint.h"
#include "samba/verify/compare.h"
#include "samba/verify/slices.h"

namespace samba::verify {
namespace {

// The reference executor is slow: fewer positions are compared with it.
constexpr Index kReferenceLength = 24;

class ModelChecker {
 public:
  ModelChecker(const Path& path, const MakeExecutor& make_executor, const ModelCheckOptions& options,
               const std::function<void(const ModelCheck&)>& done)
      : place_(find_model(path)), make_executor_(make_executor), options_(options), done_(done) {}

  std::vector<ModelCheck> run() {
    check("checksums", [&] { return checksums(); });
    check("finite weights", [&] { return load(); });
    if (executor_->numeric_mode() != NumericMode::identical) return run_relaxed();
    check("decode equals prefill", [&] { return decode_equals_prefill(); });
    check("batch rows independent", [&] { return rows_independent(); });
    check("1 thread equals N threads", [&] { return threads_agree(); });
    check("device equals reference", [&] { return reference_agrees(); });
    return std::move(checks_);
  }

 private:
  template <class Run>
  void check(const std::string& name, Run&& run) {
    ModelCheck result;
    result.name = name;
    first_.reset();
    const auto start = std::chrono::steady_clock::now();
    result.detail = run();
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (first_) {
      result.passed = false;
      result.detail = first_->name + " " + first_->detail;
    }
    if (done_) done_(result);
    checks_.push_back(std::move(result));
  }

  // The modes that do not promise identity: what they do promise is checked, what they do not is told.
  std::vector<ModelCheck> run_relaxed() {
    if (executor_->numeric_mode() == NumericMode::deterministic) {
      check("the same call again", [&] { return repeated(); });
      check("1 thread equals N threads", [&] { return threads_agree(); });
    }
    check("decode beside prefill", [&] { return decode_beside_prefill(); });
    return std::move(checks_);
  }

  std::string repeated() {
    compare("logits of the same call", stack_->forward(ids_), logits_);
    return std::to_string(length_) + " positions, twice";
  }

  std::string decode_beside_prefill() {
    const auto state = stack_->allocate_state(options_.rows, length_);
    const Index vocab = stack_->config().vocab;
    float largest = 0.0F;
    for (Index at = 0; at < length_; ++at) {
      const Array row = stack_->step(slice(ids_, 1, at, at + 1), *state);
      const Array want = reshaped(slice(logits_, 1, at, at + 1), {options_.rows, vocab});
      for (std::size_t i = 0; i < row.floats().size(); ++i) {
        largest = std::max(largest, std::abs(row.floats()[i] - want.floats()[i]));
      }
    }
    char text[96];
    std::snprintf(text, sizeof text, "the logits differ by %.3g at most; equality is not promised",
                  static_cast<double>(largest));
    return text;
  }

  void compare(const std::string& name, const Array& got, const Array& want) {
    if (!first_) first_ = first_difference(name, got, want);
  }

  std::string checksums() const {
    if (is_own_form(place_.form)) {
      const CheckpointSummary summary = inspect_checkpoint(place_.path, true);
      return std::to_string(summary.bytes) + " bytes, all digests hold";
    }
    const OpenModel model = open_model(place_);
    for (const ModelTensor& tensor : model.tensors) tensor.load();
    return std::to_string(model.file_bytes) + " bytes, read whole; " + std::string(model_form_name(place_.form)) +
           " has no digests";
  }

  std::string load() {
    executor_ = make_executor_("", 0);
    stack_ = load_model(*executor_, place_);
    length_ = std::max<Index>(2, std::min(options_.length, position_limit(stack_->config())));
    ids_ = Array(DType::int32, {options_.rows, length_});
    for (std::size_t i = 0; i < ids_.values<std::int32_t>().size(); ++i) {
      ids_.values<std::int32_t>()[i] = static_cast<std::int32_t>(stream_word(options_.seed, 0, i) %
                                                                 static_cast<std::uint64_t>(stack_->config().vocab));
    }
    logits_ = stack_->forward(ids_);
    return std::to_string(stack_->registry().total()) + " parameters";
  }

  std::string decode_equals_prefill() {
    const Index vocab = stack_->config().vocab;
    const auto state = stack_->allocate_state(options_.rows, length_);
    const Index prefill = length_ / 2;
    compare("logits of the prefill", stack_->forward(slice(ids_, 1, 0, prefill), *state),
            slice(logits_, 1, 0, prefill));
    for (Index at = prefill; at < length_; ++at) {
      const Array row = stack_->step(slice(ids_, 1, at, at + 1), *state);
      compare("logits of the token at position " + std::to_string(at), row,
              reshaped(slice(logits_, 1, at, at + 1), {options_.rows, vocab}));
    }
    return std::to_string(prefill) + " positions at once, " + std::to_string(length_ - prefill) + " single tokens";
  }

  std::string rows_independent() {
    for (Index row = 0; row < options_.rows; ++row) {
      compare("logits of row " + std::to_string(row) + " alone", stack_->forward(slice(ids_, 0, row, row + 1)),
              slice(logits_, 0, row, row + 1));
    }
    return std::to_string(options_.rows) + " rows, each alone";
  }

  Array logits_on(Executor& executor, Index length) const {
    return load_model(executor, place_)->forward(slice(ids_, 1, 0, length));
  }

  std::string threads_agree() {
    const int threads = std::max(2, executor_->threads());
    const auto one = make_executor_("", 1);
    const auto many = make_executor_("", threads);
    compare("logits with 1 thread", logits_on(*one, length_), logits_);
    compare("logits with " + std::to_string(many->threads()) + " threads", logits_on(*many, length_), logits_);
    return one->name() + " with " + std::to_string(one->threads()) + " and " + std::to_string(many->threads()) +
           " threads";
  }

  std::string reference_agrees() {
    const auto reference = make_executor_("reference", 1);
    const Index length = std::min(length_, kReferenceLength);
    compare("logits of the reference executor", logits_on(*reference, length), slice(logits_, 1, 0, length));
    return executor_->name() + " (" + executor_->instruction_set() + ") and reference, " + std::to_string(length) +
           " positions";
  }

  const ModelPlace place_;
  const MakeExecutor& make_executor_;
  const ModelCheckOptions& options_;
  const std::function<void(const ModelCheck&)>& done_;
  std::vector<ModelCheck> checks_;
  std::optional<Difference> first_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SambaStack> stack_;
  Index length_ = 0;
  Array ids_;
  Array logits_;
};

}  // namespace

std::vector<ModelCheck> check_model(const Path& path, const MakeExecutor& make_executor,
                                    const ModelCheckOptions& options,
                                    const std::function<void(const ModelCheck&)>& done) {
  return ModelChecker(path, make_executor, options, done).run();
}

}  // namespace samba::verify
