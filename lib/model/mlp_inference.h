// The small MLP for prediction (spec 50 sections B1 and B2): forward only, no optimizer memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "samba/blocks/mlp/small_mlp.h"

namespace samba {

class MlpInference {
 public:
  // weight1 (16, 8), bias1 (16), weight2 (3, 16), bias2 (3), copied; weight1 and weight2 may be packed, in one format.
  // Error(type): "<name> must be a float32 array"; Error(value): "must have shape (...)", "must be finite", another set
  // of names, mixed formats.
  MlpInference(Executor& executor, const ConstWeightMap& weights);

  // Logits (rows, 3) of X, float32 (rows, 8) with 1 to 256 rows. Each row has the bits it has alone. Error(value) of
  // the class "non_finite" when a projection or a logit is not finite.
  Array predict_logits(const ConstArray& x);
  // Several batches one after another, each of 1 to 256 rows: their logits joined in the order given.
  Array predict_logits_sessions(std::span<const ConstArray> batches);

  WeightFormat weight_format() const { return format_; }
  ArrayMap weights() const;  // expanded copies

 private:
  Executor& executor_;
  WeightFormat format_;
  std::vector<float> values_;
  SmallMlp network_;
  DeviceArray<float> parameters_;
  DeviceArray<float> x_;
};

// Initial values of a new network: the weights kaiming_uniform, the biases uniform(+-1/sqrt(fan_in)); streams 0 to 3 in
// the order of the parameters. kMlpParameters values.
std::vector<float> draw_mlp_values(std::uint64_t seed);

// The class with the largest logit of a row, the lowest on ties.
std::int32_t predicted_class(const Array& logits, std::size_t row);

// The logits of several batches, joined: `predict` gives those of one.
template <class Predict>
Array joined_logits(std::span<const ConstArray> batches, Predict&& predict) {
  std::vector<float> values;
  for (const ConstArray& batch : batches) {
    const Array logits = predict(batch);
    values.insert(values.end(), logits.floats().begin(), logits.floats().end());
  }
  return Array::from_floats({static_cast<Index>(values.size()) / kMlpClasses, kMlpClasses}, values);
}

}  // namespace samba
