#include "samba/model/decode_step.h"

#include <string>

#include "samba/core/error.h"
#include "samba/numerics/float32.h"

namespace samba {

void refuse_non_finite(Executor& executor, const char* name, Index index, const float* device) {
  float value = 0.0F;
  executor.memory().copy_to_host(&value, device + index, sizeof value);
  throw Error(ErrorKind::value, kNonFiniteClass,
              std::string("non-finite ") + name + " at flat index " + std::to_string(index) + ": " +
                  (is_nan(value) ? "NaN" : "infinity"));
}

DecodeStep::DecodeStep(Executor& executor, bool kept, Workspace& workspace)
    : executor_(executor), graph_(kept ? dynamic_cast<StepGraph*>(&executor) : nullptr) {
  if (graph_ == nullptr) return;
  found_ = reinterpret_cast<std::int64_t*>(workspace.floats(kMostChecks * sizeof(std::int64_t) / sizeof(float)));
  graph_->begin_step();
}

DecodeStep::~DecodeStep() {
  if (graph_ != nullptr) graph_->drop_step();
}

bool DecodeStep::checks_later(const char* name, Index count, const float* device) {
  if (graph_ == nullptr || count_ == kMostChecks) return false;
  graph_->search_non_finite(count, device, found_ + count_);
  checks_[count_++] = {name, device};
  return true;
}

void DecodeStep::run() {
  if (graph_ == nullptr) return;
  graph_->run_step();
  if (count_ == 0) return;
  std::array<std::int64_t, kMostChecks> found{};
  executor_.memory().copy_to_host(found.data(), found_, count_ * sizeof(std::int64_t));
  for (std::size_t i = 0; i < count_; ++i) {
    if (found[i] >= 0) refuse_non_finite(executor_, checks_[i].name, found[i], checks_[i].values);
  }
}

}  // namespace samba
