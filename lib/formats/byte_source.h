// The content of a file as a stream of bytes: as it lies, or unpacked where its name ends in .gz (RFC 1952, any number
// of members) or .zst (RFC 8878, any number of frames).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "samba/core/files.h"

namespace samba {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills the buffer; less than `bytes` at the end alone. Error(corrupt): packed content that is damaged or cut off;
  // the message names the file.
  virtual std::size_t read(char* buffer, std::size_t bytes) = 0;
  // Bytes of the file read so far, of file_size() in all.
  virtual std::uint64_t position() const = 0;
  virtual std::uint64_t file_size() const = 0;
};

std::unique_ptr<ByteSource> open_byte_source(const Path& path);

// The name without the .gz or .zst of packed content.
Path unpacked_name(const Path& path);

}  // namespace samba
