#include "samba/formats/npy.h"

#include <string>

#include "samba/core/error.h"

namespace samba {

void write_npy(const Path& path, const ConstArray& array) {
  if (array.dtype != DType::float32 && array.dtype != DType::int32) {
    refuse_type(path.string() + ": a .npy file takes float32 or int32, got " + std::string(dtype_name(array.dtype)));
  }
  std::string shape;
  for (const Index size : array.shape) shape += std::to_string(size) + ", ";
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);  // a tuple of one keeps its comma
  if (array.shape.size() == 1) shape.pop_back();
  std::string header = std::string("{'descr': '") + (array.dtype == DType::float32 ? "<f4" : "<i4") +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  // Magic, version and length take 10 bytes; with the header and its newline they end at a multiple of 64.
  header += std::string(63 - (10 + header.size()) % 64, ' ') + "\n";
  std::string front("\x93NUMPY\x01\x00", 8);
  front += static_cast<char>(header.size() & 0xFF);
  front += static_cast<char>(header.size() >> 8);
  AtomicFile file(path);
  file.write(front);
  file.write(header);
  file.write(array.data, static_cast<std::size_t>(array.size()) * dtype_size(array.dtype));
  file.commit();
}

}  // namespace samba
