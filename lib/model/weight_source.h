// Where the weights of a stack for inference come from, tensor by tensor, so that no more than the tensors of one layer
// lie in memory beside what the stack has made of them.
#pragma once

#include <cstddef>

#include "samba/numerics/packed_weight.h"

namespace samba {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual WeightFormat format() const = 0;  // of the matrices
  // Whether the tensors come one behind the other, so that they must be opened in ascending order.
  virtual bool is_stream() const { return false; }

  // The tensor of this index in the registry: of its shape, float32 or packed, aligned for its type, finite. In host
  // memory, valid until its release(). Every index is asked for once; some are open together.
  virtual ConstWeight open(std::size_t index) = 0;
  // What was opened has been copied or laid out.
  virtual void release(std::size_t index) = 0;
};

}  // namespace samba
