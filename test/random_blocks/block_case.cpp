#include "block_case.h"

#include <cmath>
#include <numeric>
#include <ostream>

#include "samba/numerics/float32.h"
#include "samba/numerics/philox.h"

namespace samba {

namespace {

constexpr std::uint32_t kInputStream = 1000, kGradientStream = 1001, kKindStream = 2000;

// An ordinary value, or what the family puts in its place.
float value_of(ValueFamily family, std::uint32_t word, float ordinary) {
  if (family == ValueFamily::ordinary) return ordinary;
  switch (word % 12) {
    case 0:
      return from_bits(word & kSignBit);
    case 1:
      return from_bits(word & (kSignBit | kMantissaMask));
    case 2:
      return ordinary * 0x1p-63F;
    case 3:
      return ordinary * 0x1p-125F;
    case 4:
      return family == ValueFamily::wide ? ordinary * 0x1p20F : ordinary;
    default:
      return ordinary;
  }
}

}  // namespace

Index BlockCase::length() const { return std::accumulate(pieces.begin(), pieces.end(), Index{0}); }

Array BlockCase::draw(std::uint32_t stream, Shape shape, float mean, float deviation) const {
  Array array(DType::float32, std::move(shape));
  for (std::size_t i = 0; i < array.floats().size(); ++i) {
    const std::uint32_t word = stream_word(seed, kKindStream + stream, i);
    array.floats()[i] = value_of(family, word, stream_normal(seed, stream, i, mean, deviation));
  }
  return array;
}

// Matrices whose rows keep the size of what they multiply, norms around 1, decays and steps as in a model.
ArrayMap BlockCase::weights() const {
  ArrayMap weights;
  for (const WeightSpec& spec : specs) {
    float mean = 0.0F, deviation = 0.3F;
    if (spec.name == "A_log") {
      mean = 0.7F, deviation = 0.5F;
    } else if (spec.name == "dt_bias" || spec.name == "dt_proj.bias") {
      mean = -2.0F, deviation = 0.7F;
    } else if (spec.name == "B_bias" || spec.name == "C_bias" || spec.name == "D") {
      mean = 1.0F;
    } else if (spec.name == "conv1d.weight") {
      deviation = 0.5F;
    } else if (spec.shape.size() == 2) {
      deviation = 1.3F / std::sqrt(static_cast<float>(spec.shape[1]));
    } else if (spec.name.ends_with(".weight")) {
      mean = 1.0F, deviation = 0.2F;
    }
    weights.emplace(spec.name, draw(static_cast<std::uint32_t>(weights.size()), spec.shape, mean, deviation));
  }
  return weights;
}

Array BlockCase::input() const { return draw(kInputStream, {batch, length(), d_model}, 0.0F, 1.0F); }
Array BlockCase::grad_output() const { return draw(kGradientStream, {batch, length(), d_model}, 0.0F, 1.0F); }

std::ostream& operator<<(std::ostream& out, const BlockCase& block) {
  nlohmann::json text = {{"kind", block.kind},     {"options", block.options}, {"d_model", block.d_model},
                         {"batch", block.batch},   {"pieces", block.pieces},   {"lengths", block.lengths},
                         {"family", block.family}, {"seed", block.seed}};
  for (const WeightSpec& spec : block.specs) {
    if (spec.name == "up_proj.weight") text["intermediate"] = spec.shape[0];
  }
  return out << text.dump();
}

}  // namespace samba
