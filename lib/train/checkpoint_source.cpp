#include "samba/train/checkpoint_source.h"

#include <algorithm>
#include <cstring>

#include "samba/core/error.h"
#include "samba/numerics/float32.h"
#include "samba/train/state_dictionary.h"

namespace samba {

namespace {
constexpr std::uint64_t kLegacyPiece = std::uint64_t{1} << 20;
}

std::array<Index, kArchiveArrays> archive_counts(const Registry& registry) {
  const Index total = registry.total();
  return {total, total, total, static_cast<Index>(registry.tensors().size())};
}

CheckpointSource::CheckpointSource(const Path& path, bool for_training) : path_(path.string()) {
  if (is_samba_archive(path)) {
    archive_.emplace(path);
  } else {
    legacy_.emplace(path);
  }
  config_ = parse_state_config(state(), path_);
  registry_.emplace(parse_state_registry(state(), config_, path_));
  if (archive_ || for_training) check_state_metadata(state(), path_);
  // A model has no more memory than its file has numbers.
  if (archive_) {
    archive_->check_arrays(archive_counts(*registry_));
  } else {
    legacy_->find_arrays(archive_counts(*registry_));
  }
}

void CheckpointSource::read_arrays(const std::array<PieceWriter, kArchiveArrays>& destinations,
                                   const FileProgress& progress) {
  if (archive_) {
    archive_->read_arrays(destinations, progress);
    return;
  }
  const std::array<Index, kArchiveArrays> counts = archive_counts(*registry_);
  std::vector<std::byte> piece;
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(counts[array]) * sizeof(float);
    for (std::uint64_t at = 0; destinations[array] && at < bytes; at += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kLegacyPiece, bytes - at)));
      legacy_->read(array, at, piece);
      destinations[array](at, piece.data(), piece.size());
    }
  }
  if (progress) progress(file_size(), file_size());
}

void CheckpointSource::read_parameters(std::span<float> values) {
  if (archive_) return archive_->read_parameters(values.data(), values.size_bytes());
  legacy_->read(kParameters, legacy_read_, std::as_writable_bytes(values));
  legacy_read_ += values.size_bytes();
}

void CheckpointSource::finish(const FileProgress& progress) {
  if (archive_) return archive_->finish_arrays(progress);
  if (progress) progress(file_size(), file_size());
}

void FiniteWatch::look(std::uint64_t first, std::span<const float> values) {
  look(first * sizeof(float), values.data(), values.size_bytes());
}

void FiniteWatch::look(std::uint64_t first, const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes && found_ < 0; at += sizeof(float)) {
    float value = 0.0F;
    std::memcpy(&value, static_cast<const char*>(from) + at, sizeof value);
    if (!is_finite(value)) found_ = static_cast<Index>((first + at) / sizeof(float));
  }
}

PieceWriter FiniteWatch::watched(PieceWriter next) {
  return [this, next = std::move(next)](std::uint64_t first, const void* from, std::size_t bytes) {
    look(first, from, bytes);
    if (next) next(first, from, bytes);
  };
}

void FiniteWatch::refuse_if_found(const CheckpointSource& source) const {
  if (found_ < 0) return;
  refuse_corrupt("weights_finite", source.path() + " cannot be loaded (weights_finite): the parameter " +
                                       source.registry().element_name(found_) + " at flat index " +
                                       std::to_string(found_) + " is not finite");
}

}  // namespace samba
