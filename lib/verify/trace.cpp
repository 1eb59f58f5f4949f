#include "samba/verify/trace.h"

#include <algorithm>
#include <utility>

#include "samba/numerics/float32.h"
#include "samba/verify/runner.h"

namespace samba::verify {

namespace {

// Any NaN equals any NaN, as in a comparison.
std::string digest_of(Array values) {
  if (values.dtype() == DType::float32) {
    for (float& value : values.floats()) {
      if (is_nan(value)) value = from_bits(0x7FC00000U);
    }
  }
  return sha256_of(values);
}

}  // namespace

void Trace::record(std::string_view name, const Shape& shape, const float* device) {
  Array values = Array::zeros(shape);
  if (values.byte_size() > 0) executor_.memory().copy_to_host(values.data(), device, values.byte_size());
  add("stage." + std::string(name), values);
}

void Trace::note(const std::string& name, ConstArray values) { add(name, values); }

void Trace::add(const std::string& name, const ConstArray& values) {
  if (values_) return;
  const std::size_t number = entries_.size();
  entries_.push_back({call_.empty() ? name : call_ + ": " + name, digest_of(copy_of(values))});
  if (reference_ != nullptr && number < reference_->size()) {
    const Entry &mine = entries_.back(), &other = (*reference_)[number];
    if (mine.name == other.name && mine.digest != other.digest) kept_ = number;
  }
  if (kept_ == number) values_ = copy_of(values);
}

std::optional<Difference> earliest_difference(Executor& executor, Executor& reference, const TracedRun& run) {
  Trace right(reference, nullptr, std::nullopt);
  run(reference, right);
  Trace mine(executor, &right.entries(), std::nullopt);
  run(executor, mine);
  if (!mine.kept()) return std::nullopt;
  Trace again(reference, nullptr, mine.kept());
  run(reference, again);
  if (!again.values()) return std::nullopt;
  return first_difference(mine.entries()[*mine.kept()].name, mine.values()->view(), again.values()->view());
}

}  // namespace samba::verify
