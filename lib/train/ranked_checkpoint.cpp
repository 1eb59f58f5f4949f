#include "samba/train/ranked_checkpoint.h"

#include <cstring>

#include "samba/core/error.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_archive.h"
#include "samba/train/checkpoint_source.h"
#include "samba/train/model_state.h"
#include "samba/train/shared_file.h"
#include "samba/train/stack_checkpoint.h"
#include "samba/train/state_dictionary.h"

namespace samba {

namespace {

std::uint64_t bytes_of(Index floats) { return static_cast<std::uint64_t>(floats) * sizeof(float); }

// The part of a section that is `count` device floats, from element `first` of the section on.
SectionPart device_part(Memory& memory, const float* values, Index first, Index count) {
  return {bytes_of(first), bytes_of(count), [&memory, values](std::uint64_t at, void* to, std::size_t bytes) {
            memory.copy_to_host(to, reinterpret_cast<const char*>(values) + at, bytes);
          }};
}

FileSection flags_section(const std::vector<std::int32_t>& flags, bool writes) {
  FileSection section{flags.size() * sizeof(std::int32_t), {}};
  if (!writes) return section;
  section.parts.push_back({0, section.bytes, [&flags](std::uint64_t at, void* to, std::size_t bytes) {
                             std::memcpy(to, reinterpret_cast<const char*>(flags.data()) + at, bytes);
                           }});
  return section;
}

// The buffers of a trainer: parameters, then the moments, in the order of either file.
struct Buffers {
  explicit Buffers(const SambaTrainer& trainer) : optimizer(trainer.optimizer()) {
    whole.push_back(trainer.stack().device_parameters());
    shares.push_back(optimizer.exp_avg());
    if (optimizer.exp_avg_sq() != nullptr) shares.push_back(optimizer.exp_avg_sq());
  }
  const Optimizer& optimizer;
  std::vector<const float*> whole;   // of all elements
  std::vector<const float*> shares;  // of the optimizer's ranges

  // Elements [first, first + count) of the flat buffer, as one section for every buffer. Every rank writes what it
  // owns.
  std::vector<FileSection> sections(Memory& memory, Index first, Index count) const {
    std::vector<FileSection> all(whole.size() + shares.size(), FileSection{bytes_of(count), {}});
    Index moment = 0;
    for (const ParameterRange& range : optimizer.ranges()) {
      const Index at = range.first - first;
      if (at >= 0 && at < count) {
        for (std::size_t i = 0; i < whole.size(); ++i) {
          all[i].parts.push_back(device_part(memory, whole[i] + range.first, at, range.count));
        }
        for (std::size_t i = 0; i < shares.size(); ++i) {
          all[whole.size() + i].parts.push_back(device_part(memory, shares[i] + moment, at, range.count));
        }
      }
      moment += range.count;
    }
    return all;
  }
};

std::string save_samba_archive(const SambaTrainer& trainer, const Path& path) {
  Communicator& ranks = trainer.ranks()->communicator();
  const nlohmann::json state = state_dictionary(trainer);
  const auto counts = archive_counts(trainer.stack().registry());
  std::vector<FileSection> sections =
      Buffers(trainer).sections(trainer.stack().executor().memory(), 0, trainer.stack().registry().total());
  sections.push_back(flags_section(trainer.optimizer().buffer_initialized(), ranks.rank() == 0));
  return write_shared_file(
      ranks, path, kArchiveMagic,
      [&](const std::vector<std::string>& digests) { return samba_archive_header(path, state, counts, digests); },
      sections);
}

void refuse_non_finite(const SambaTrainer& trainer, const Path& path) {
  const Registry& registry = trainer.stack().registry();
  const Index found =
      trainer.stack().executor().elementwise().first_non_finite(registry.total(), trainer.stack().device_parameters());
  if (found < 0) return;
  throw AgreedError(ErrorKind::value,
                    "cannot save " + path.string() + ": " + registry.element_name(found) + " is not finite");
}

std::string save_stack_archive(const SambaTrainer& trainer, const Path& path) {
  Communicator& ranks = trainer.ranks()->communicator();
  refuse_non_finite(trainer, path);
  const std::vector<ParameterTensor>& tensors = trainer.stack().registry().tensors();
  std::vector<StackTensorSource> parameters, moments;
  for (const ParameterTensor& tensor : tensors) parameters.push_back({tensor.name, DType::float32, tensor.shape, {}});
  for (MomentSpec& spec : moment_specs(trainer.stack().registry(), trainer.optimizer().settings().kind)) {
    moments.push_back({std::move(spec.name), spec.dtype, std::move(spec.shape), {}});
  }
  const Buffers buffers(trainer);
  const std::size_t kinds = buffers.whole.size() + buffers.shares.size();
  std::vector<FileSection> sections(kinds * tensors.size());
  for (std::size_t j = 0; j < tensors.size(); ++j) {
    auto of_tensor = buffers.sections(trainer.stack().executor().memory(), tensors[j].offset, tensors[j].size);
    for (std::size_t kind = 0; kind < kinds; ++kind) sections[kind * tensors.size() + j] = std::move(of_tensor[kind]);
  }
  sections.push_back(flags_section(trainer.optimizer().buffer_initialized(), ranks.rank() == 0));
  const nlohmann::json state = stack_state_json(model_state(trainer), WeightFormat::float32);
  return write_shared_file(
      ranks, path, kStackMagic,
      [&](const std::vector<std::string>& digests) {
        return stack_archive_header(path, state, parameters, moments, digests);
      },
      sections);
}

}  // namespace

std::string save_ranked_checkpoint(const SambaTrainer& trainer, const Path& path) {
  return fits_samba_archive(model_state(trainer)) ? save_samba_archive(trainer, path)
                                                  : save_stack_archive(trainer, path);
}

std::vector<ParameterRange> moment_ranges(const Registry& registry, const RankPlace& place) {
  if (place.ranks == nullptr || place.ranks->size() == 1) return {{0, 0, registry.total()}};
  return GradientShares(registry, place.ranks->size(), place.bucket_elements).owned(place.ranks->rank());
}

Index element_count(const std::vector<ParameterRange>& ranges) {
  Index count = 0;
  for (const ParameterRange& range : ranges) count += range.count;
  return count;
}

}  // namespace samba
