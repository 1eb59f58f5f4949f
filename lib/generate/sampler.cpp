#include "samba/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/core/numbers.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

float maximum(std::span<const float> values) {
  float best = -kInfinity;
  for (const float value : values) best = max(best, value);
  return best;
}

void refuse_option(const char* name, double value, const char* accepted) {
  refuse_value(std::string(name) + ": must be " + accepted + ", got " + number_text(value));
}

}  // namespace

void check_sampler_options(const SamplerOptions& options) {
  // Written so that NaN is refused as well. A temperature that rounds to a subnormal would divide by zero.
  const auto temperature = static_cast<float>(options.temperature);
  if (!(options.temperature == 0.0 || (temperature >= kMinNormal && is_finite(temperature)))) {
    refuse_option("temperature", options.temperature, "0 or a positive number");
  }
  if (options.top_k < 0) refuse_option("top-k", static_cast<double>(options.top_k), ">= 0 (0: all tokens)");
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) refuse_option("top-p", options.top_p, "in (0, 1]");
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) refuse_option("min-p", options.min_p, "in [0, 1]");
  const auto penalty = static_cast<float>(options.repetition_penalty);
  if (!(penalty >= kMinNormal && is_finite(penalty))) {
    refuse_option("repetition penalty", options.repetition_penalty, "a positive number");
  }
}

Sampler::Sampler(const SamplerOptions& options, Index vocab) : options_(options) {
  check_sampler_options(options);
  const auto count = static_cast<std::size_t>(vocab);
  logits_.resize(count);
  seen_.resize(count);
  candidates_.resize(count);
  sums_.resize(count);
}

std::int32_t Sampler::greedy() const {
  std::size_t best = 0;
  for (std::size_t v = 1; v < logits_.size(); ++v) {
    if (logits_[v] > logits_[best]) best = v;
  }
  return static_cast<std::int32_t>(best);
}

// The candidates that count, sorted; returns how many. Weights below 2^-24 do not: the sums begin at the weight 1 of
// the largest logit, so that every one of them leaves the sums, which come in descending order, as they are; and no cut
// keeps a candidate behind the one that reaches the whole sum.
std::size_t Sampler::take_candidates() {
  constexpr float kLeastWeight = 0x1p-24F;
  constexpr float kLeastLogit = -17.0F;  // exp(-17) = 0.69 * 2^-24
  const float top = maximum(logits_);
  if (!is_finite(top)) throw Error(ErrorKind::check, "the largest logit divided by the temperature is not finite");
  std::size_t count = 0;
  for (std::size_t v = 0; v < logits_.size(); ++v) {
    const float below = sub(logits_[v], top);
    if (below < kLeastLogit) continue;
    const float weight = elementary::exp(below);
    if (weight >= kLeastWeight) candidates_[count++] = {weight, static_cast<std::int32_t>(v)};
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  const auto begin = candidates_.begin();
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < count) {
    count = static_cast<std::size_t>(options_.top_k);
    std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(count), end, before);
  }
  std::sort(begin, begin + static_cast<std::ptrdiff_t>(count), before);
  return count;
}

std::int32_t Sampler::next(std::span<const float> logits, std::span<const std::int32_t> context, std::uint32_t sample,
                           std::uint64_t index) {
  const FloatScope float_scope;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    if (!is_finite(logits[v])) {
      throw Error(ErrorKind::check, "the logit of token " + std::to_string(v) + " is not finite");
    }
    logits_[v] = flush(logits[v]);
  }
  if (const auto penalty = static_cast<float>(options_.repetition_penalty); penalty != 1.0F) {
    std::fill(seen_.begin(), seen_.end(), char{0});
    for (const std::int32_t id : context) {
      const auto v = static_cast<std::size_t>(id);
      if (std::exchange(seen_[v], char{1}) != 0) continue;
      logits_[v] = logits_[v] > 0.0F ? div(logits_[v], penalty) : mul(logits_[v], penalty);
    }
  }
  if (options_.temperature == 0.0) return greedy();

  const auto temperature = static_cast<float>(options_.temperature);
  for (float& logit : logits_) logit = div(logit, temperature);
  std::size_t kept = take_candidates();
  float sum = 0.0F;
  for (std::size_t i = 0; i < kept; ++i) sums_[i] = sum = add(sum, candidates_[i].weight);
  const float enough = mul(static_cast<float>(options_.top_p), sums_[kept - 1]);
  const auto begin = sums_.begin();
  kept = std::min(
      kept,
      static_cast<std::size_t>(std::lower_bound(begin, begin + static_cast<std::ptrdiff_t>(kept), enough) - begin) + 1);
  const float least = mul(static_cast<float>(options_.min_p), candidates_[0].weight);
  while (kept > 1 && candidates_[kept - 1].weight < least) --kept;

  const float target = mul(stream_coin(options_.seed, sample, index), sums_[kept - 1]);
  const auto drawn = std::upper_bound(begin, begin + static_cast<std::ptrdiff_t>(kept), target) - begin;
  return candidates_[std::min(static_cast<std::size_t>(drawn), kept - 1)].id;
}

float log_probability(std::span<const float> logits, std::int32_t id) {
  const FloatScope float_scope;
  const float top = maximum(logits);
  float sum = 0.0F;
  for (const float logit : logits) sum = add(sum, elementary::exp(sub(logit, top)));
  return sub(sub(logits[static_cast<std::size_t>(id)], top), elementary::log(sum));
}

}  // namespace samba
