// What a checkpoint of a trainer that is no rank holds, ready to be written. Taken from a device it is a copy in host
// memory: the trainer may go on while the file is written, whose bytes are those of the moment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "samba/core/files.h"
#include "samba/formats/samba_archive.h"
#include "samba/train/trainer.h"

namespace samba {

class CheckpointImage {
 public:
  CheckpointImage();
  ~CheckpointImage();

  // May be called again, not while write() runs. On a device the buffers are copied, into memory that is taken once; on
  // a host they are read when they are written.
  void take(const SambaTrainer& trainer);

  // Atomic and durable; returns the SHA-256 of the whole file. On another thread than the trainer's if it is a copy.
  std::string write(const Path& path, const FileProgress& progress = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace samba
