// A checkpoint of a Samba stack, streamed archive or legacy JSON, up to the point where its arrays are read (spec 62
// sections 4 and 5).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/formats/legacy_checkpoint.h"
#include "samba/formats/samba_archive.h"
#include "samba/model/registry.h"
#include "samba/model/samba_config.h"

namespace samba {

// Elements of the four arrays.
std::array<Index, kArchiveArrays> archive_counts(const Registry& registry);

class CheckpointSource {
 public:
  // Everything that can be checked before memory for the arrays is taken; refusals of their class.
  CheckpointSource(const Path& path, bool for_training);

  bool legacy() const { return legacy_.has_value(); }
  std::uint64_t file_size() const { return archive_ ? archive_->file_size() : legacy_->file_size(); }
  const std::string& path() const { return path_; }
  const nlohmann::json& state() const { return archive_ ? archive_->state() : legacy_->state(); }
  const SambaConfig& config() const { return config_; }
  const Registry& registry() const { return *registry_; }

  // Of a streamed archive: where an array begins in the file.
  std::uint64_t array_offset(std::size_t array) const { return archive_->array_offset(array); }
  // Delivers the arrays, all verified when this returns. An empty destination drops its array.
  void read_arrays(const std::array<PieceWriter, kArchiveArrays>& destinations, const FileProgress& progress);
  // The same for the parameters alone, in steps and in order; verified when finish() returns.
  void read_parameters(std::span<float> values);
  void finish(const FileProgress& progress);
  // Bytes of an array of a legacy file, from `first` on.
  void read_legacy(std::size_t array, std::uint64_t first, std::span<std::byte> to) const {
    legacy_->read(array, first, to);
  }

 private:
  std::string path_;
  std::optional<SambaArchiveReader> archive_;
  std::optional<LegacyCheckpoint> legacy_;
  std::uint64_t legacy_read_ = 0;  // bytes of the parameters
  SambaConfig config_;
  std::optional<Registry> registry_;
};

// Remembers the first non-finite parameter that passes by.
class FiniteWatch {
 public:
  // A destination that looks at whole floats on their way to `next`, which may be empty. This must outlive it.
  PieceWriter watched(PieceWriter next);
  // Looks at values that start at the flat index `first`.
  void look(std::uint64_t first, std::span<const float> values);
  // Class weights_finite.
  void refuse_if_found(const CheckpointSource& source) const;

 private:
  void look(std::uint64_t first, const void* from, std::size_t bytes);

  Index found_ = -1;
};

}  // namespace samba
