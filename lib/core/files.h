// Files: read whole or in pieces (mapped: mapped_file.h); written so that a reader sees the old content or the new one,
// never a part.
//
// Errors name the path and what the system said. A path that cannot be used (missing, a folder, no permission) is
// Error(value); a device that fails (disk full, input/output error, no file handles) is Error(resource).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace samba {

using Path = std::filesystem::path;

// A regular file open for reading.
class FileReader {
 public:
  explicit FileReader(Path path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const Path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  std::uint64_t position() const { return position_; }
  int descriptor() const { return descriptor_; }
  // Reads until the buffer is full or the file ends; returns the bytes read.
  std::size_t read(void* buffer, std::size_t bytes);
  void seek(std::uint64_t position);

 private:
  Path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

// The whole content. Files larger than `most_bytes` are refused (Error(value)).
std::string read_file(const Path& path, std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());

// A file being written: content goes to a new file in the target's folder (created exclusively, mode 0600); commit()
// makes it durable and puts it in the target's place with `mode` less the umask; else the temporary file is removed and
// the target stays as it was. Symbolic links are followed; a pipe or a device (/dev/stdout) gets what comes, at once.
class AtomicFile {
 public:
  explicit AtomicFile(Path target, unsigned mode = 0644);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // fsync of the file, rename, fsync of the folder. When only the last one fails, the target holds the new content.
  void commit();

  const Path& target() const { return target_; }
  const Path& temporary() const { return temporary_; }

 private:
  void discard() noexcept;
  [[noreturn]] void fail(const std::string& action, int error);

  Path target_;
  Path temporary_;
  unsigned mode_;
  int descriptor_ = -1;
};

// Throws what AtomicFile(target) would throw and leaves nothing behind: for work that has a file to write at its end.
// Asks nothing of a pipe or a device.
void check_can_write(const Path& target);

void write_file_atomically(const Path& path, std::string_view content, unsigned mode = 0644);

// fsync of a folder, so that names made or replaced in it are durable.
void sync_folder(const Path& folder);

// Throws the error of a failed system call: `action` is "open", "write", ...; `error` an errno.
[[noreturn]] void throw_file_error(const std::string& action, const Path& path, int error);

}  // namespace samba
