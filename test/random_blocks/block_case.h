// A block with drawn weights and inputs, and what is to be called on it: all that a random case consists of.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/blocks/block.h"
#include "samba/core/array.h"

namespace samba {

enum class ValueFamily {
  ordinary,
  sparse,  // zeros of both signs, subnormals and values whose squares underflow among the ordinary ones
  wide,    // values of 2^20 as well; scores stay far from 2^127, where masked keys begin to act (spec 20 section 4)
};

struct BlockCase {
  std::string kind;
  nlohmann::json options;
  std::vector<WeightSpec> specs;
  Index d_model = 0;
  bool differentiable = true;
  Index batch = 1;
  std::vector<Index> pieces;   // lengths of the calls on a state; together the length of the sequence
  std::vector<Index> lengths;  // of the rows of a ragged batch
  ValueFamily family = ValueFamily::ordinary;
  std::uint64_t seed = 0;

  Index length() const;
  ArrayMap weights() const;
  Array input() const;        // (batch, length, d_model)
  Array grad_output() const;  // the same shape

 private:
  Array draw(std::uint32_t stream, Shape shape, float mean, float deviation) const;
};

std::ostream& operator<<(std::ostream& out, const BlockCase& block);

}  // namespace samba
