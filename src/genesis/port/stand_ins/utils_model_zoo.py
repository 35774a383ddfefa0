"""torch.utils.model_zoo: weights of local files."""

from genesis.port.stand_ins.hub import load_state_dict_from_url

load_url = load_state_dict_from_url
