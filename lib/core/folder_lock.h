// One process at a time works in a folder.
#pragma once

#include "samba/core/files.h"

namespace samba {

// Holds FOLDER/.lock (flock) as long as it lives: the system gives it back when the process ends, however it ends, so
// that no lock is ever stale. The file stays; it names the process that holds it, or held it last.
class FolderLock {
 public:
  // Error(value) when another process has it: the message names the folder, that process and its host.
  explicit FolderLock(const Path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace samba
