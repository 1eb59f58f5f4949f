#include "samba/formats/samba_archive.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/framed_file.h"

namespace samba {

static_assert(std::endian::native == std::endian::little, "files are little-endian and copied as they are");

namespace {

using Json = nlohmann::json;

constexpr std::string_view kStreamSchema = "mojolearn.samba-stream.v2";
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::uint64_t kElementBytes = 4;
constexpr std::array<std::string_view, kArchiveArrays> kNames = {"parameters", "exp_avg", "exp_avg_sq",
                                                                 "buf_initialized"};

std::uint64_t byte_count(Index elements) { return kElementBytes * static_cast<std::uint64_t>(elements); }

bool is_sha256_text(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char digit) {
           return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
         });
}

Json array_entry(std::size_t array, Index count, const std::string& sha256) {
  return {{"dtype", archive_array_dtype(array)},
          {"name", archive_array_name(array)},
          {"nbytes", byte_count(count)},
          {"sha256", sha256},
          {"shape", Json::array({count})}};
}

// Walks over the bytes of an array in pieces: visit(first byte, piece).
template <class Visit>
void for_each_piece(std::uint64_t bytes, std::vector<char>& buffer, Visit&& visit) {
  for (std::uint64_t first = 0; first < bytes; first += kPiece) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, bytes - first));
    visit(first, std::span<char>(buffer.data(), size));
  }
}

}  // namespace

std::string_view archive_array_name(std::size_t array) { return kNames.at(array); }

std::string_view archive_array_dtype(std::size_t array) { return array == kBufferInitialized ? "<i4" : "<f4"; }

std::string samba_archive_header(const Path& path, const Json& state, const std::array<Index, kArchiveArrays>& counts,
                                 std::span<const std::string> sha256) {
  Json entries = Json::array();
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    entries.push_back(array_entry(array, counts[array], sha256[array]));
  }
  std::string header = canonical_json({{"arrays", entries}, {"schema", kStreamSchema}, {"state", state}});
  if (header.size() > kLongestArchiveHeader) {
    refuse_value("the header of " + path.string() + " would have " + std::to_string(header.size()) +
                 " bytes, an archive holds at most " + std::to_string(kLongestArchiveHeader));
  }
  return header;
}

std::string write_samba_archive(const Path& path, const Json& state, const std::array<Index, kArchiveArrays>& counts,
                                const std::array<PieceReader, kArchiveArrays>& sources, const FileProgress& progress) {
  std::vector<char> buffer(kPiece);
  std::array<std::string, kArchiveArrays> digests;
  std::uint64_t total = 0;
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    Sha256 hash;
    for_each_piece(byte_count(counts[array]), buffer, [&](std::uint64_t first, std::span<char> piece) {
      sources[array](first, piece.data(), piece.size());
      hash.update(piece.data(), piece.size());
    });
    digests[array] = hash.finish_hex();
    total += byte_count(counts[array]);
  }
  const std::string header = samba_archive_header(path, state, counts, digests);
  FramedFileWriter file(path, kArchiveMagic, header, total, progress);
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    Sha256 hash;
    for_each_piece(byte_count(counts[array]), buffer, [&](std::uint64_t first, std::span<char> piece) {
      sources[array](first, piece.data(), piece.size());
      hash.update(piece.data(), piece.size());
      file.put(piece.data(), piece.size());
    });
    if (hash.finish_hex() != digests[array]) {
      throw Error(ErrorKind::internal, "the array " + std::string(archive_array_name(array)) +
                                           " changed while it was saved to " + path.string());
    }
  }
  return file.commit();
}

bool is_samba_archive(const Path& path) {
  FileReader file(path);
  std::array<char, kArchiveMagic.size()> start{};
  return file.read(start.data(), start.size()) == start.size() &&
         std::string_view(start.data(), start.size()) == kArchiveMagic;
}

void SambaArchiveReader::refuse(const std::string& error_class, const std::string& reason) const {
  refuse_corrupt(error_class,
                 file_.path().string() + " is damaged or no Samba checkpoint (" + error_class + "): " + reason);
}

SambaArchiveReader::SambaArchiveReader(const Path& path) : file_(path) {
  std::array<char, kArchiveMagic.size()> magic{};
  if (file_.read(magic.data(), magic.size()) != magic.size() ||
      std::string_view(magic.data(), magic.size()) != kArchiveMagic) {
    refuse("format", "it does not start with the magic of a streamed archive");
  }
  header_ = read_framed_header(file_, kLongestArchiveHeader,
                               [this](const auto& error_class, const auto& reason) { refuse(error_class, reason); });
  if (!header_.is_object() || header_.size() != 3 || !header_.contains("arrays") || !header_.contains("schema") ||
      !header_.contains("state")) {
    refuse("stream_schema", "the header must be an object with exactly the keys arrays, schema and state");
  }
  if (header_["schema"] != kStreamSchema) {
    refuse("stream_schema", "the schema must be \"" + std::string(kStreamSchema) + "\"");
  }
}

void SambaArchiveReader::check_arrays(const std::array<Index, kArchiveArrays>& counts) {
  const Json& entries = header_["arrays"];
  if (!entries.is_array() || entries.size() != kArchiveArrays) {
    refuse("array_descriptor", "arrays must be a list of " + std::to_string(kArchiveArrays) + " entries");
  }
  std::uint64_t total = file_.position();
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    const Json& entry = entries[array];
    const std::string name(archive_array_name(array));
    if (!entry.is_object()) refuse("array_descriptor", "the entry of " + name + " is no object");
    if (!entry.contains("sha256") || !is_sha256_text(entry["sha256"])) {
      refuse("array_descriptor", "sha256 of " + name + " must be 64 lower-case hex digits");
    }
    const Json expected = array_entry(array, counts[array], entry["sha256"].get<std::string>());
    if (entry.size() != expected.size()) {
      refuse("array_descriptor",
             "the entry of " + name + " must have exactly the keys dtype, name, nbytes, sha256, shape");
    }
    for (const auto& [key, value] : expected.items()) {
      // The canonical text tells 8.0 from 8, which comparing numbers would not.
      if (!entry.contains(key) || canonical_json(entry[key]) != canonical_json(value)) {
        refuse("array_descriptor", key + " of " + name + " must be " + canonical_json(value));
      }
    }
    total += byte_count(counts[array]);
  }
  if (file_.size() != total) {
    refuse("size", "it has " + std::to_string(file_.size()) + " bytes, its header says " + std::to_string(total));
  }
  counts_ = counts;
  data_ = file_.position();
}

std::uint64_t SambaArchiveReader::array_offset(std::size_t array) const {
  std::uint64_t offset = data_;
  for (std::size_t before = 0; before < array; ++before) offset += byte_count(counts_[before]);
  return offset;
}

void SambaArchiveReader::verify(std::size_t array, const std::string& digest) const {
  const std::string name(archive_array_name(array));
  if (digest != header_["arrays"][array]["sha256"].get_ref<const std::string&>()) {
    refuse("array_integrity:" + name, "the SHA-256 of the array " + name + " differs");
  }
}

void SambaArchiveReader::read_array(std::size_t array, const PieceWriter& destination, const FileProgress& progress) {
  std::vector<char> buffer(kPiece);
  Sha256 hash;
  for_each_piece(byte_count(counts_[array]), buffer, [&](std::uint64_t first, std::span<char> piece) {
    if (file_.read(piece.data(), piece.size()) != piece.size()) refuse("size", "it became shorter while it was read");
    hash.update(piece.data(), piece.size());
    if (destination) destination(first, piece.data(), piece.size());
    if (progress) progress(file_.position(), file_.size());
  });
  verify(array, hash.finish_hex());
}

void SambaArchiveReader::read_arrays(const std::array<PieceWriter, kArchiveArrays>& destinations,
                                     const FileProgress& progress) {
  for (std::size_t array = 0; array < kArchiveArrays; ++array) read_array(array, destinations[array], progress);
}

void SambaArchiveReader::read_parameters(void* to, std::size_t bytes) {
  if (file_.read(to, bytes) != bytes) refuse("size", "it became shorter while it was read");
  parameters_hash_.update(to, bytes);
}

void SambaArchiveReader::finish_arrays(const FileProgress& progress) {
  verify(kParameters, parameters_hash_.finish_hex());
  for (std::size_t array = kExpAvg; array < kArchiveArrays; ++array) read_array(array, {}, progress);
}

}  // namespace samba
