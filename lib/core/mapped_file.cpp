#include "samba/core/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

namespace samba {

MappedFile::MappedFile(const Path& path) {
  const FileReader file(path);
  if (file.size() == 0) return;
  void* data = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (data == MAP_FAILED) throw_file_error("map", path, errno);
  data_ = data;
  size_ = file.size();
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::prefetch(std::span<const std::byte> part) const { advise(part, MADV_WILLNEED, false); }

void MappedFile::drop(std::span<const std::byte> part) const { advise(part, MADV_DONTNEED, true); }

void MappedFile::advise(std::span<const std::byte> part, int advice, bool whole_pages) const {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto down = [page](std::uintptr_t address) { return address / page * page; };
  const auto up = [&](std::uintptr_t address) { return down(address + page - 1); };
  const auto base = reinterpret_cast<std::uintptr_t>(data_);
  const auto given = reinterpret_cast<std::uintptr_t>(part.data());
  // The mapping starts at a page and ends with the rest of its last one, which belongs to it alone.
  std::uintptr_t first = std::max(given, base), end = std::min(given + part.size(), base + size_);
  if (first >= end) return;
  if (end == base + size_) end = up(end);
  first = whole_pages ? up(first) : down(first);
  end = whole_pages ? down(end) : up(end);
  // A refused advice costs speed or memory, nothing else.
  if (first < end) (void)::madvise(reinterpret_cast<void*>(first), end - first, advice);
}

}  // namespace samba
