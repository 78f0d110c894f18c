# An image with models in it, on top of `addnorm`, which Dockerfile makes. The context is the folder
# that has the models, so nothing else is sent to the engine:
#   docker build -t my-models -f deploy/model.Dockerfile bundles
#       every bundle in bundles/
#   docker build -t my-model -f deploy/model.Dockerfile --target checkpoint --build-arg NAME=my-model FOLDER
#       exports the checkpoint in FOLDER; needs `addnorm-export`, which Dockerfile makes too
#   docker build -t my-model -f deploy/model.Dockerfile --target hub \
#     --build-arg NAME=my-model --build-arg MODEL=ORG/NAME@COMMIT - < deploy/model.Dockerfile
#       downloads it from the Hugging Face hub first
#
# Build arguments (--build-arg NAME=VALUE):
#   PRECISION    as in `addnorm export`, for instance fp32,int8
#   BASE, EXPORT the two images, where they have other names or digests
ARG BASE=addnorm EXPORT=addnorm-export

FROM $EXPORT AS of-checkpoint
ARG NAME PRECISION=fp32
COPY . /checkpoint
RUN python -m addnorm export "/checkpoint@$PRECISION" --name "$NAME" --out /models

FROM $EXPORT AS of-hub
ARG NAME MODEL PRECISION=fp32
RUN python -m addnorm export "$MODEL@$PRECISION" --name "$NAME" --out /models

# In the place of the base's own bundle
FROM $BASE AS emptied
USER root
RUN rm -r /bundles
USER 10001:10001

FROM emptied AS checkpoint
COPY --from=of-checkpoint /models /bundles

FROM emptied AS hub
COPY --from=of-hub /models /bundles

FROM emptied AS bundles
COPY . /bundles
