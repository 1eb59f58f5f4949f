#include "samba/train/shared_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/core/system_calls.h"
#include "samba/formats/framed_file.h"

namespace samba {

namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr std::size_t kDigestDigits = 64;

// A file that another rank made, open for writing anywhere.
class PlacedWriter {
 public:
  explicit PlacedWriter(const Path& path) : path_(path), descriptor_(open_again(path, O_WRONLY)) {
    if (descriptor_ >= 0) return;
    if (errno == ENOENT) {
      refuse_value("cannot open " + path.string() +
                   ": no such file; a run of several ranks needs a folder on a file system that all of them share");
    }
    throw_file_error("open", path, errno);
  }
  ~PlacedWriter() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  void write(std::uint64_t at, const char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t wrote = ::pwrite(descriptor_, data, bytes, static_cast<off_t>(at));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) throw_file_error("write", path_, wrote == 0 ? ENOSPC : errno);
      data += wrote;
      at += static_cast<std::uint64_t>(wrote);
      bytes -= static_cast<std::size_t>(wrote);
    }
  }
  void finish() {  // other hosts see it
    if (again([&] { return ::fsync(descriptor_); }) != 0) throw_file_error("make durable", path_, errno);
    if (close_once(std::exchange(descriptor_, -1)) != 0) throw_file_error("close", path_, errno);
  }

 private:
  const Path& path_;
  int descriptor_;
};

void write_parts(const Path& path, std::uint64_t first, const std::vector<FileSection>& sections) {
  PlacedWriter writer(path);
  std::vector<char> piece(kBuffer);
  for (const FileSection& section : sections) {
    for (const SectionPart& part : section.parts) {
      for (std::uint64_t done = 0; done < part.bytes; done += kBuffer) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, part.bytes - done));
        part.read(done, piece.data(), bytes);
        writer.write(first + part.first + done, piece.data(), bytes);
      }
    }
    first += section.bytes;
  }
  writer.finish();
}

// Feeds `bytes` bytes of the file to a hash.
void hash_bytes(FileReader& reader, std::uint64_t bytes, Sha256& hash) {
  std::vector<char> piece(kBuffer);
  while (bytes > 0) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, bytes));
    if (reader.read(piece.data(), wanted) != wanted) {
      throw Error(ErrorKind::resource,
                  "cannot read back " + reader.path().string() + ": it is shorter than was written");
    }
    hash.update(piece.data(), wanted);
    bytes -= wanted;
  }
}

// The digests of every size-th section, this rank's first, end to end.
std::string own_digests(const Path& path, std::uint64_t first, const std::vector<FileSection>& sections, int rank,
                        int size) {
  FileReader reader(path);
  std::string digests;
  for (std::size_t s = 0; s < sections.size(); ++s) {
    if (static_cast<int>(s % static_cast<std::size_t>(size)) == rank) {
      reader.seek(first);
      Sha256 hash;
      hash_bytes(reader, sections[s].bytes, hash);
      digests += hash.finish_hex();
    }
    first += sections[s].bytes;
  }
  return digests;
}

// What stands before the data: magic, length, header, digest.
std::string frame(std::string_view magic, const std::string& header) {
  const std::uint64_t length = header.size();
  Sha256 hash;
  hash.update(header);
  const Sha256Digest digest = hash.finish();
  std::string text(magic);
  text.append(reinterpret_cast<const char*>(&length), sizeof length);
  text += header;
  text.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return text;
}

}  // namespace

std::string write_shared_file(Communicator& ranks, const Path& path, std::string_view magic,
                              const std::function<std::string(const std::vector<std::string>& digests)>& header,
                              const std::vector<FileSection>& sections) {
  const bool first_rank = ranks.rank() == 0;
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::string> digests(sections.size(), std::string(kDigestDigits, '0'));
  const std::uint64_t data_first = frame(magic, header(digests)).size();
  std::unique_ptr<AtomicFile> file;
  agreed(&ranks, [&] {
    if (first_rank) file = std::make_unique<AtomicFile>(path);
  });
  const Path temporary =
      text_of_first(ranks, first_rank ? std::filesystem::absolute(file->temporary()).string() : std::string());
  agreed(&ranks, [&] { write_parts(temporary, data_first, sections); });
  std::string own;
  agreed(&ranks, [&] { own = own_digests(temporary, data_first, sections, ranks.rank(), ranks.size()); });
  const std::vector<std::string> all = gather_texts(ranks, own);
  for (std::size_t s = 0; s < sections.size(); ++s) {
    digests[s] = all[s % size].substr(s / size * kDigestDigits, kDigestDigits);
  }
  std::string whole;
  agreed(&ranks, [&] {
    if (!first_rank) return;
    file->write(frame(magic, header(digests)));
    Sha256 hash;
    FileReader reader(temporary);
    hash_bytes(reader, reader.size(), hash);
    file->commit();
    whole = hash.finish_hex();
  });
  return text_of_first(ranks, whole);
}

}  // namespace samba
