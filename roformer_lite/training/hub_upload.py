"""The repository on the Hub that a finished model is uploaded to."""

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

from ..errors import InputError
from .options import TrainOptions
from .trainer_arguments import RoFormerLiteTrainingArguments


def create_repository(args: RoFormerLiteTrainingArguments, name: str) -> None:
    """Make sure that there is a repository to upload to, and complete `args.hub_model_id` with its owner.

    Call it before the training: a missing login then shows at once, and the card can name the repository.

    Args:
        args: Training arguments, with or without a `hub_model_id`.
        name: Name of the repository where none is given.

    Raises:
        InputError: when the Hub refuses.
    """
    api = HfApi(token=args.hub_token)
    try:
        repo = api.create_repo(args.hub_model_id or name, private=args.hub_private_repo, exist_ok=True)
        if args.hub_revision:
            api.create_branch(repo.repo_id, branch=args.hub_revision, exist_ok=True)
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        raise InputError(f"--push_to_hub: no repository {args.hub_model_id or name}: {error}") from error
    args.hub_model_id = repo.repo_id


def upload(options: TrainOptions) -> None:
    """Upload the finished directory."""
    args = options.training
    commit = HfApi(token=args.hub_token).upload_folder(
        repo_id=args.hub_model_id,
        folder_path=options.output_dir,
        commit_message="Upload the trained model",
        revision=args.hub_revision,
    )
    print(f"Uploaded to {args.hub_model_id}: {commit.commit_url}")
