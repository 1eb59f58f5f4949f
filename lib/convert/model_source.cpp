#include "samba/convert/model_source.h"

#include "samba/convert/folder_model.h"
#include "samba/convert/gguf_model.h"
#include "samba/convert/mamba_ssm_config.h"
#include "samba/convert/own_model.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_metadata.h"
#include "samba/formats/stack_archive.h"
#include "samba/train/checkpoint.h"
#include "samba/train/model_folder.h"
#include "samba/train/run_folder.h"

namespace samba {

namespace {

namespace fs = std::filesystem;

}  // namespace

bool is_own_form(ModelForm form) {
  return form == ModelForm::samba_archive || form == ModelForm::legacy_json || form == ModelForm::stack_archive ||
         form == ModelForm::folder;
}

namespace {

// A folder with weights: samba's own has the key format, or tells its state under samba.
ModelForm folder_form(const Path& folder) {
  const nlohmann::json config = read_folder_config(folder);
  if (config.is_object() && config.contains("format")) return ModelForm::folder;
  return is_mamba_ssm_config(config) ? ModelForm::mamba_ssm_folder : ModelForm::huggingface_folder;
}

}  // namespace

ModelPlace find_model(const Path& path) {
  if (fs::is_directory(path) && has_tensor_files(path)) return {folder_form(path), path};
  const Path found = find_checkpoint(path);
  if (fs::is_directory(found)) return {ModelForm::folder, found};
  if (is_gguf(found)) return {ModelForm::gguf_file, found};
  if (is_stack_archive(found)) return {ModelForm::stack_archive, found};
  return {is_samba_archive(found) ? ModelForm::samba_archive : ModelForm::legacy_json, found};
}

OpenModel open_model(const ModelPlace& place, Reading reading) {
  if (is_own_form(place.form)) return open_own_model(place.form, place.path, reading);
  if (place.form == ModelForm::huggingface_folder) return open_huggingface_folder(place.path, reading);
  if (place.form == ModelForm::mamba_ssm_folder) return open_mamba_ssm_folder(place.path);
  if (place.form == ModelForm::gguf_file) return open_gguf(place.path);
  throw Error(ErrorKind::internal, "a model of the form " + std::string(model_form_name(place.form)));
}

StoredModel read_model(const ModelPlace& place, Reading reading) {
  if (is_own_form(place.form)) return read_model(place.path, reading);
  return stored_model(open_model(place, reading));
}

std::unique_ptr<SambaStack> load_model(Executor& executor, const ModelPlace& place, const FileProgress& progress) {
  if (is_own_form(place.form)) return load_for_inference(executor, place.path, progress);
  return load_for_inference(executor, open_model(place));
}

}  // namespace samba
