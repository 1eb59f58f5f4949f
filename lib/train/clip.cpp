#include "samba/train/clip.h"

#include <cmath>
#include <numeric>
#include <string>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/fold.h"

namespace samba {

ClipReport clip_report(std::vector<float> sums_of_squares, double max_norm) {
  const auto limit = static_cast<float>(max_norm);
  if (!(max_norm > 0.0) || std::isinf(max_norm)) {
    refuse_value("max_norm must be finite and greater than 0, got " + std::to_string(max_norm));
  }
  ClipReport report;
  report.sums_of_squares = std::move(sums_of_squares);
  for (const float sum : report.sums_of_squares) report.norms.push_back(flush(elementary::sqrt(sum)));
  const auto norm = [&](std::int64_t j) { return report.norms[static_cast<std::size_t>(j)]; };
  report.total_sum = dot(static_cast<std::int64_t>(report.norms.size()), norm, norm);
  report.total_norm = flush(elementary::sqrt(report.total_sum));
  if (!is_finite(report.total_norm)) {
    throw Error(ErrorKind::value, kNonFiniteClass,
                std::string("clip.total_norm is ") + (is_nan(report.total_norm) ? "NaN" : "infinite") +
                    ": the gradient cannot be clipped");
  }
  constexpr float kSmall = from_bits(0x358637BDU);  // 1e-6
  const float ratio = div(limit, flush(report.total_norm + kSmall));
  report.coefficient = ratio < 1.0F ? ratio : 1.0F;
  return report;
}

ClipReport clip_grad_norm(Executor& executor, std::span<const Index> sizes, double max_norm, float* gradient) {
  const TensorRun all{0, sizes.size(), 0, std::accumulate(sizes.begin(), sizes.end(), Index{0})};
  return clip_grad_norm(executor, sizes, {&all, 1}, max_norm, gradient);
}

ClipReport clip_grad_norm(Executor& executor, std::span<const Index> sizes, std::span<const TensorRun> runs,
                          double max_norm, float* gradient) {
  const FloatScope float_scope;
  std::vector<float> sums;
  for (const TensorRun& run : runs) {
    const std::size_t done = sums.size();
    sums.resize(done + run.end - run.first);
    executor.optimizer().sums_of_squares(static_cast<Index>(run.end - run.first), sizes.data() + run.first,
                                         gradient + run.offset, sums.data() + done);
  }
  ClipReport report = clip_report(std::move(sums), max_norm);
  for (const TensorRun& run : runs) {
    executor.optimizer().scale(run.size, report.coefficient, gradient + run.offset);
  }
  return report;
}

}  // namespace samba
