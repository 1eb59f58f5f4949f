// A model in one of samba's own forms, as an OpenModel.
#pragma once

#include "samba/convert/open_model.h"

namespace samba {

// Tensors of samba.stack.v1 are read and verified one by one; the other forms are read whole.
OpenModel open_own_model(ModelForm form, const Path& path, Reading reading);

}  // namespace samba
