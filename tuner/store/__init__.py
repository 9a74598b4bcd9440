"""What a study leaves behind: trials in Optuna's storage, requests and files in its folder."""
