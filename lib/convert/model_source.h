// Every place a model can come from, behind one door: what a path is, and the model in it.
//
//   a file      streamed archive, legacy JSON, samba.stack.v1, GGUF
//   a folder    a training run (its newest checkpoint), safetensors of samba, of Hugging Face transformers, or of
//               mamba_ssm
//
// Refusals: Error(value) for a path that holds no model, or a model that cannot be represented exactly (naming the
// field or tensor); Error(corrupt) for damaged files; Error(resource) where the machine has no room.
#pragma once

#include <memory>
#include <string>

#include "samba/convert/open_model.h"
#include "samba/formats/framed_file.h"

namespace samba {

struct ModelPlace {
  ModelForm form = ModelForm::stack_archive;
  Path path;  // the file or folder of this form; of a run folder its newest checkpoint
};

// A form that samba writes, whose readers check digests.
bool is_own_form(ModelForm form);

// A file whose form cannot be told is taken for a samba checkpoint, whose reader then says what is wrong.
ModelPlace find_model(const Path& path);

// `inference` leaves moments, optimizer, schedule and random stream unread. Forms of other programs have none.
OpenModel open_model(const ModelPlace& place, Reading reading = Reading::inference);

// The whole model in host memory; of samba's own forms with the entries their files have.
StoredModel read_model(const ModelPlace& place, Reading reading = Reading::inference);

std::unique_ptr<SambaStack> load_model(Executor& executor, const ModelPlace& place, const FileProgress& progress = {});

}  // namespace samba
