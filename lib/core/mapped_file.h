// A file mapped into memory for reading: its pages come in when they are touched, and can be given back.
#pragma once

#include <cstddef>
#include <span>

#include "samba/core/files.h"

namespace samba {

// Only regular files are accepted: anything else is Error(value) with the path. An empty file gives an empty span. The
// file must not shrink while it is mapped. Movable: what bytes() gave stays valid in the object moved to.
class MappedFile {
 public:
  MappedFile() = default;  // of nothing
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Advice for a part of bytes(); never fails, never changes what is read there, and may be given by several threads.
  // What lies outside of bytes() is ignored.
  void prefetch(std::span<const std::byte> part) const;  // it is read soon: start to fetch its pages
  // Its pages may go: those that lie in it whole no longer count as resident. Touching them fetches them again.
  void drop(std::span<const std::byte> part) const;

 private:
  void advise(std::span<const std::byte> part, int advice, bool whole_pages) const;

  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace samba
